{{/* Names and labels that a cluster would refuse, or take and then make no pods of. */}}
{{- define "baton.validateNames" -}}
{{- $full := include "baton.fullname" . -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" $full) }}{{ fail (printf "the release is called %q, but a Service's name begins with a letter and has no dots: choose another name, or set fullnameOverride." .Release.Name) }}{{ end -}}
{{- /* Pods of a StatefulSet have its name and eleven characters as a label, which has 63 at most; a set over nodes makes StatefulSets NAME-GROUP. */ -}}
{{- $limits := dict "StatefulSet" 52 "LeaderWorkerSet" 48 "DisaggregatedSet" 38 -}}
{{- range $role := include "baton.roles" . | fromJsonArray -}}
{{- $kind := (index $.Values $role).kind -}}
{{- $name := printf "%s-%s" $full $role -}}
{{- $most := get $limits $kind | default 63 -}}
{{- if gt (len $name) (int $most) }}{{ fail (printf "%s has %d characters, but a %s of that name could make no pods: %d are the most, since a label of theirs is longer than the name. Set fullnameOverride to %d characters or less." $name (len $name) $kind (int $most) (sub (int $most) (add (len $role) 1))) }}{{ end -}}
{{- end -}}
{{- range $from := list "commonLabels" "podLabels" -}}
{{- range $key, $unused := index $.Values $from -}}
{{- if or (has $key (list "helm.sh/chart" "baton/worker" "baton/rank")) (hasPrefix "app.kubernetes.io/" $key) }}{{ fail (printf "%s has %s, which the chart sets and selects pods by: use another key, nameOverride or fullnameOverride." $from $key) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- with .Values.router.service.ports -}}
{{- if eq (int .http) (int .grpc) }}{{ fail (printf "router.service.ports.http and router.service.ports.grpc are both %d: a Service has a port once." (int .http)) }}{{ end -}}
{{- end -}}
{{- end }}

{{/* Flags and variables of containers: (dict "who" "decode" "values" …). */}}
{{- define "baton.validateFlags" -}}
{{- $who := .who -}}
{{- $trusted := "pods listen on the network, where everybody would be trusted. Use tls and apiKeys." -}}
{{- range $flag, $unused := .values.extraArgs -}}
{{- if hasPrefix "insecure" $flag }}{{ fail (printf "%s.extraArgs has %s: %s" $who $flag $trusted) }}{{ end -}}
{{- if hasPrefix "test-" $flag }}{{ fail (printf "%s.extraArgs has %s, which breaks things on purpose." $who $flag) }}{{ end -}}
{{- end -}}
{{- range $variable := .values.env -}}
{{- if hasPrefix "BATON_INSECURE" $variable.name }}{{ fail (printf "%s.env has %s: %s" $who $variable.name $trusted) }}{{ end -}}
{{- if hasPrefix "BATON_TEST_" $variable.name }}{{ fail (printf "%s.env has %s, which breaks things on purpose." $who $variable.name) }}{{ end -}}
{{- end -}}
{{- end }}
