{{/* Names, labels and the parts that all pods have. */}}
{{- define "baton.name" -}}{{ .Values.nameOverride | default .Chart.Name }}{{- end }}

{{- define "baton.fullname" -}}
{{- $name := include "baton.name" . -}}
{{- $own := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- .Values.fullnameOverride | default $own | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "baton.selector" -}}
app.kubernetes.io/name: {{ include "baton.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "baton.labels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "baton.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- define "baton.tlsSecret" -}}
{{- if eq .Values.tls.mode "secret" }}{{ .Values.tls.existingSecret }}{{ else }}{{ include "baton.fullname" . }}-tls{{ end }}
{{- end }}
{{- define "baton.httpTlsSecret" -}}{{ .Values.tls.http.existingSecret | default (printf "%s-http-tls" (include "baton.fullname" .)) }}{{- end }}
{{/* Names of the certificate that clients are shown. */}}
{{- define "baton.httpNames" -}}
{{- $router := printf "%s-router" (include "baton.fullname" .) -}}
{{- $own := list $router (printf "%s.%s" $router .Release.Namespace) (printf "%s.%s.svc" $router .Release.Namespace) "localhost" -}}
{{- .Values.tls.http.dnsNames | default $own | toJson -}}
{{- end }}
{{/* The name by which routers are asked and checked: one of the certificate's; of a wildcard, a name that it covers. */}}
{{- define "baton.httpName" -}}{{ include "baton.httpNames" . | fromJsonArray | first | replace "*" "baton" }}{{- end }}
{{- define "baton.keysSecret" -}}{{ .Values.apiKeys.existingSecret | default (printf "%s-api-keys" (include "baton.fullname" .)) }}{{- end }}
{{- define "baton.hashSecret" -}}{{ .Values.hashKey.existingSecret | default (printf "%s-hash-key" (include "baton.fullname" .)) }}{{- end }}
{{- define "baton.clusterSecret" -}}{{ .Values.clusterSecret.existingSecret | default (printf "%s-cluster-secret" (include "baton.fullname" .)) }}{{- end }}

{{- define "baton.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch   # else every file of a volume is touched at each start
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "baton.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Flags that routers and workers share. */}}
{{- define "baton.commonArgs" -}}
- {{ printf "--model=/models/%s" .Values.model.path | quote }}
- {{ printf "--served-model-name=%s" .Values.model.name | quote }}
- {{ printf "--host=%s" .Values.listenAddress | quote }}
- --tls-cert=/etc/baton/tls/tls.crt
- --tls-key=/etc/baton/tls/tls.key
- --tls-ca=/etc/baton/tls/ca.crt
- --hash-key-file=/etc/baton/hash-key/hash-key
- --cluster-secret-file=/etc/baton/cluster-secret/cluster-secret
- --shutdown-timeout-ms={{ mul .Values.drain.shutdownSeconds 1000 }}
- --log-format={{ .Values.logFormat }}
- --ready-file=/run/baton/ready
{{- end }}

{{/* A map of flags as arguments. */}}
{{- define "baton.extraArgs" -}}
{{- range $flag, $value := . }}
{{- if kindIs "bool" $value }}
- --{{ if not $value }}no-{{ end }}{{ $flag }}
{{- else if and (kindIs "float64" $value) (eq (floor $value) $value) }}
- --{{ $flag }}={{ int64 $value }}
{{- else }}
- {{ printf "--%s=%v" $flag $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.commonMounts" -}}
- {name: model, mountPath: /models, readOnly: true}
- {name: tls, mountPath: /etc/baton/tls, readOnly: true}
- {name: hash-key, mountPath: /etc/baton/hash-key, readOnly: true}
- {name: cluster-secret, mountPath: /etc/baton/cluster-secret, readOnly: true}
- {name: run, mountPath: /run/baton}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "baton.commonVolumes" -}}
- name: model
  {{- toYaml (.Values.model.volume | default (dict "emptyDir" dict)) | nindent 2 }}{{/* empty only where `helm lint` looks at all templates */}}
- name: tls
  secret: {secretName: {{ include "baton.tlsSecret" . }}, defaultMode: 0440}
- name: hash-key
  secret: {secretName: {{ include "baton.hashSecret" . }}, defaultMode: 0440}
- name: cluster-secret
  secret: {secretName: {{ include "baton.clusterSecret" . }}, defaultMode: 0440}
- name: run
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- end }}

{{/* Where pods go: (dict "root" $ "component" "router" "values" .Values.router). `together`: not spread over zones, ranks talk much. */}}
{{- define "baton.placement" -}}
enableServiceLinks: false   # a Service called baton-grpc would be the variable BATON_GRPC_PORT, which is a flag's
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $key := list "runtimeClassName" "priorityClassName" "schedulerName" }}
{{- with get $.values $key }}
{{ $key }}: {{ . }}
{{- end }}
{{- end }}
{{- with .values.initContainers }}
initContainers: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .root.Values.topologySpread.enabled }}
topologySpreadConstraints:
  {{- range $key := ternary (list "kubernetes.io/hostname") (list "kubernetes.io/hostname" "topology.kubernetes.io/zone") (.together | default false) }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: {{ $.root.Values.topologySpread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "baton.selector" $.root | nindent 8 }}
        app.kubernetes.io/component: {{ $.component }}
  {{- end }}
{{- end }}
{{- end }}

{{/* How long a pod of a role may take until it is ready: image, node and volume (ten minutes), and the model. */}}
{{- define "baton.startSeconds" -}}{{ add .startupSeconds 600 }}{{- end }}
{{- define "baton.longestStart" -}}
{{- $most := 0 -}}
{{- range $role := include "baton.roles" . | fromJsonArray -}}{{- $most = max $most (include "baton.startSeconds" (index $.Values $role) | int64) -}}{{- end -}}
{{- $most -}}
{{- end }}

{{/* Roles with workers, now or by autoscaling, as a list of names. */}}
{{- define "baton.roles" -}}
{{- $roles := list -}}
{{- range $role := list "prefill" "decode" "both" -}}
{{- $v := index $.Values $role -}}
{{- if or (gt (int $v.replicas) 0) $v.autoscaling.enabled -}}{{- $roles = append $roles $role -}}{{- end -}}
{{- end -}}
{{- toJson $roles -}}
{{- end }}
