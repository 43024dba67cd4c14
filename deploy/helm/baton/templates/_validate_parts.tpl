{{/* A quantity of memory as bytes: "8Gi", "500M", 1024. */}}
{{- define "baton.bytes" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- $scale := get (dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776) $unit -}}
{{- if or (not $number) (not $scale) }}{{ fail (printf "%q is no quantity of memory, such as 8Gi." $text) }}{{ end -}}
{{- mulf (float64 $number) $scale | int64 -}}
{{- end }}

{{/* A quantity of CPUs as thousandths: "4", "500m", 2.5. */}}
{{- define "baton.millicpus" -}}
{{- $text := toString . -}}
{{- if not (regexMatch "^([0-9]+m|[0-9]+(\\.[0-9]+)?)$" $text) }}{{ fail (printf "%q is no quantity of CPUs, such as 4 or 500m." $text) }}{{ end -}}
{{- if hasSuffix "m" $text }}{{ trimSuffix "m" $text | int64 }}{{ else }}{{ mulf (float64 $text) 1000 | int64 }}{{ end -}}
{{- end }}

{{/* The ranks of a worker and the nodes and devices that they get. */}}
{{- define "baton.validateRanks" -}}
{{- $role := .role -}}
{{- $r := index .values $role -}}
{{- $nodes := int $r.nodes -}}
{{- $ranks := mul $r.tensorParallelSize $r.pipelineParallelSize | int -}}
{{- $spread := has $r.kind (list "LeaderWorkerSet" "DisaggregatedSet") -}}
{{- if and (gt $nodes 1) (not $spread) }}{{ fail (printf "%s.nodes is %d, but %s.kind is %s, whose pods are workers of their own: set %s.kind to LeaderWorkerSet." $role $nodes $role $r.kind $role) }}{{ end -}}
{{- if and $r.exclusiveTopology (not $spread) }}{{ fail (printf "%s.exclusiveTopology is set, but %s.kind is %s: only a LeaderWorkerSet or DisaggregatedSet places workers by it." $role $role $r.kind) }}{{ end -}}
{{- if ne (mod $ranks $nodes) 0 }}{{ fail (printf "%s.nodes is %d, but tensorParallelSize %d × pipelineParallelSize %d = %d ranks cannot be spread evenly over them: change one of the three." $role $nodes (int $r.tensorParallelSize) (int $r.pipelineParallelSize) $ranks) }}{{ end -}}
{{- $here := div $ranks $nodes | int -}}
{{- if eq $r.device "cuda" -}}
{{- $gpus := get $r.resources.limits "nvidia.com/gpu" | int -}}
{{- if gt $here $gpus }}{{ fail (printf "%s has %d ranks on each of %d nodes, but %s.resources.limits has nvidia.com/gpu: %d: raise it or %s.nodes, or lower tensorParallelSize." $role $here $nodes $role $gpus $role) }}{{ end -}}
{{- else if hasKey $r.resources.limits "cpu" -}}
{{- $cpus := include "baton.millicpus" $r.resources.limits.cpu | int -}}
{{- if and (gt $here 1) (lt $cpus (mul $here 1000 | int)) }}{{ fail (printf "%s has %d ranks on each of %d nodes, but %s.resources.limits.cpu is %v: raise it or %s.nodes, or lower tensorParallelSize." $role $here $nodes $role $r.resources.limits.cpu $role) }}{{ end -}}
{{- end -}}
{{- if eq $r.kind "DisaggregatedSet" -}}
{{- $other := ternary "decode" "prefill" (eq $role "prefill") -}}
{{- if ne (index .values $other).kind "DisaggregatedSet" }}{{ fail (printf "%s.kind is DisaggregatedSet, but %s.kind is %s: such a set has both roles." $role $other (index .values $other).kind) }}{{ end -}}
{{- if $r.autoscaling.enabled }}{{ fail (printf "%s.autoscaling.enabled is true, but %s.kind is DisaggregatedSet, whose roles cannot be scaled one by one: set both kinds to LeaderWorkerSet." $role $role) }}{{ end -}}
{{- end -}}
{{- end }}

{{/* What a container asks for is no more than it may have: (dict "who" "router" "resources" …). */}}
{{- define "baton.validateResources" -}}
{{- $who := .who -}}
{{- $limits := .resources.limits -}}
{{- with $limits.cpu }}{{ $unused := include "baton.millicpus" . }}{{ end -}}
{{- with $limits.memory }}{{ $unused := include "baton.bytes" . }}{{ end -}}
{{- range $key, $wanted := .resources.requests | default dict -}}
{{- $most := get $limits $key -}}
{{- if and (has $key (list "cpu" "memory")) (hasKey $limits $key) -}}
{{- $unit := ternary "baton.millicpus" "baton.bytes" (eq $key "cpu") -}}
{{- if gt (include $unit $wanted | int64) (include $unit $most | int64) }}{{ fail (printf "%s.resources.requests.%s is %v, above its limit %v: set %s.resources.requests.%s, too." $who $key $wanted $most $who $key) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* /dev/shm, KV and a container's memory. */}}
{{- define "baton.validateMemory" -}}
{{- $limits := (index .values .role).resources.limits -}}
{{- $shm := include "baton.bytes" .values.shmSize | int64 -}}
{{- if le $shm 0 }}{{ fail (printf "shmSize is %v, which would be no limit at all: write how much of a worker's memory /dev/shm may be, such as 64Mi." .values.shmSize) }}{{ end -}}
{{- $r := index .values .role -}}
{{- $here := div (mul $r.tensorParallelSize $r.pipelineParallelSize) $r.nodes | int -}}
{{- if and (eq $r.device "cuda") (gt $here 1) (lt $shm 134217728) }}{{ fail (printf "shmSize is %v, but %s has %d GPUs in a pod, and NCCL keeps its buffers in /dev/shm: 128Mi at least." .values.shmSize .role $here) }}{{ end -}}
{{- if hasKey $limits "memory" -}}
{{- if ge $shm (include "baton.bytes" $limits.memory | int64) }}{{ fail (printf "shmSize is %v, but %s.resources.limits.memory is %v, of which /dev/shm is a part: raise the limit or lower shmSize." .values.shmSize .role $limits.memory) }}{{ end -}}
{{- $kv := div (get $r "kvCacheMemory" | default 0 | int64) $r.nodes | int64 -}}
{{- if and (eq $r.device "cpu") (ge $kv (include "baton.bytes" $limits.memory | int64)) }}{{ fail (printf "%s.kvCacheMemory is %d, which is %d bytes for each of %d nodes, but %s.resources.limits.memory is %v, and the model needs some of it: raise the limit or lower kvCacheMemory." .role (int64 $r.kvCacheMemory) $kv (int $r.nodes) .role $limits.memory) }}{{ end -}}
{{- end -}}
{{- end }}

{{/* TLS to clients. */}}
{{- define "baton.validateHttpTls" -}}
{{- $h := .Values.tls.http -}}
{{- if and (eq $h.mode "secret") (not $h.existingSecret) }}{{ fail "tls.http.mode is secret, but tls.http.existingSecret is empty: name the Secret with tls.crt and tls.key." }}{{ end -}}
{{- if and (ne $h.mode "secret") $h.existingSecret }}{{ fail (printf "tls.http.existingSecret is set, but tls.http.mode is %s, which does not read it: set tls.http.mode to secret." $h.mode) }}{{ end -}}
{{- if and (eq $h.mode "certManager") (not $h.issuerRef) }}{{ fail "tls.http.mode is certManager, but tls.http.issuerRef is empty: name the Issuer or ClusterIssuer." }}{{ end -}}
{{- if and (has $h.mode (list "secret" "certManager")) (not $h.dnsNames) }}{{ fail (printf "tls.http.mode is %s, but tls.http.dnsNames is empty: write whom the certificate names, such as [llm.example.com]." $h.mode) }}{{ end -}}
{{- if and $h.clientCaSecret (eq $h.mode "none") }}{{ fail "tls.http.clientCaSecret is set, but tls.http.mode is none: nobody shows a certificate in plain text. Set tls.http.mode." }}{{ end -}}
{{- if and $h.clientCaSecret (not $h.clientCertSecret) }}{{ fail "tls.http.clientCaSecret is set, but tls.http.clientCertSecret is empty: `helm test` would be refused. Name a Secret with tls.crt and tls.key of that authority." }}{{ end -}}
{{- if and $h.clientCertSecret (not $h.clientCaSecret) }}{{ fail "tls.http.clientCertSecret is set, but tls.http.clientCaSecret is empty: nobody would ask for that certificate. Set tls.http.clientCaSecret." }}{{ end -}}
{{- if and .Values.route.enabled (ne $h.mode "none") }}{{ fail (printf "route.enabled is true, but tls.http.mode is %s: a Gateway's HTTPRoute speaks plain text to routers. Set tls.http.mode to none and end TLS in the Gateway, or route.enabled to false." $h.mode) }}{{ end -}}
{{- end }}
