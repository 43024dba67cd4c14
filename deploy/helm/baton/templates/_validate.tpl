{{/* Values that contradict each other: one sentence each, with the value to change. */}}
{{- define "baton.validate" -}}
{{- $v := .Values -}}
{{- $roles := include "baton.roles" . | fromJsonArray -}}
{{- if not $roles }}{{ fail "prefill.replicas, decode.replicas and both.replicas are all 0: nothing would compute. Set prefill.replicas and decode.replicas, or both.replicas." }}{{ end -}}
{{- if and (has "prefill" $roles) (not (has "decode" $roles)) }}{{ fail "prefill.replicas is above 0, but decode.replicas is 0: prefill workers hand over to decode workers. Set decode.replicas, or prefill.replicas to 0 and both.replicas." }}{{ end -}}
{{- if and (has "decode" $roles) (not (has "prefill" $roles)) (not (has "both" $roles)) }}{{ fail "decode.replicas is above 0, but prefill.replicas is 0: set prefill.replicas, or use both.replicas." }}{{ end -}}
{{- if not $v.model.path }}{{ fail "model.path is empty: name the model's file or folder inside model.volume." }}{{ end -}}
{{- $sources := list -}}
{{- range $kind, $source := $v.model.volume }}{{ if not (kindIs "invalid" $source) }}{{ $sources = append $sources $kind }}{{ end }}{{ end -}}
{{- if ne (len $sources) 1 }}{{ fail (printf "model.volume must be one volume source, such as {persistentVolumeClaim: {claimName: models, readOnly: true}}; it has %d." (len $sources)) }}{{ end -}}
{{- range $who := ternary (prepend $roles "router") list (has "emptyDir" $sources) -}}
{{- if not (index $v $who).initContainers }}{{ fail (printf "model.volume is an emptyDir, but %s.initContainers is empty: nobody would put a model there. Name a volume that has it, or a container that fetches it into the volume called model." $who) }}{{ end -}}
{{- end -}}
{{- $need := add $v.drain.preStopSeconds $v.drain.shutdownSeconds 15 -}}
{{- if lt (int $v.drain.gracePeriodSeconds) (int $need) }}{{ fail (printf "drain.gracePeriodSeconds is %d, but preStopSeconds + shutdownSeconds + 15 = %d: the pod would be killed while requests run." (int $v.drain.gracePeriodSeconds) (int $need)) }}{{ end -}}
{{- if and (eq $v.tls.mode "secret") (not $v.tls.existingSecret) }}{{ fail "tls.mode is secret, but tls.existingSecret is empty: name the Secret with tls.crt, tls.key and ca.crt." }}{{ end -}}
{{- if and (eq $v.tls.mode "certManager") (not $v.tls.issuerRef) }}{{ fail "tls.mode is certManager, but tls.issuerRef is empty: name the Issuer or ClusterIssuer." }}{{ end -}}
{{- if and (ne $v.tls.mode "secret") $v.tls.existingSecret }}{{ fail (printf "tls.existingSecret is set, but tls.mode is %s, which does not read it: set tls.mode to secret." $v.tls.mode) }}{{ end -}}
{{- if and $v.apiKeys.existingSecret $v.apiKeys.values }}{{ fail "apiKeys.existingSecret and apiKeys.values are both set: keep one." }}{{ end -}}
{{- include "baton.validateNames" . -}}
{{- include "baton.validateHttpTls" . -}}
{{- if and $v.rdma.enabled (not $v.rdma.resources) }}{{ fail "rdma.enabled is true, but rdma.resources is empty: pods would get no RDMA device. Name your device plugin's resource, such as {rdma/ib: 1}." }}{{ end -}}
{{- if and $v.rdma.required (not $v.rdma.enabled) }}{{ fail "rdma.required is true, but rdma.enabled is false: no worker would start." }}{{ end -}}
{{- if and $v.route.enabled (not $v.route.parentRefs) }}{{ fail "route.enabled is true, but route.parentRefs is empty: name the Gateway." }}{{ end -}}
{{- if and $v.monitoring.serviceMonitor.enabled $v.monitoring.podMonitor.enabled }}{{ fail "monitoring.serviceMonitor.enabled and monitoring.podMonitor.enabled are both true: Prometheus would scrape each router twice, and boards would show twice what there is. Enable one." }}{{ end -}}
{{- if and $v.monitoring.podMonitor.enabled $v.networkPolicy.enabled (not $v.networkPolicy.monitoring) }}{{ fail "monitoring.podMonitor.enabled is true, but networkPolicy.monitoring is empty: Prometheus could not reach the routers' port 8002. Name its namespace, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]." }}{{ end -}}
{{- if and $v.monitoring.serviceMonitor.enabled $v.networkPolicy.enabled (not $v.networkPolicy.monitoring) }}{{ fail "monitoring.serviceMonitor.enabled is true, but networkPolicy.monitoring is empty: Prometheus could not reach the routers' port 8002. Name its namespace, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]." }}{{ end -}}
{{- range $role := $roles -}}
{{- $r := index $v $role -}}
{{- $tp := int $r.tensorParallelSize -}}
{{- if and (gt (int $v.reductionWidth) 1) (lt (int $v.reductionWidth) $tp) }}{{ fail (printf "reductionWidth is %d, but %s.tensorParallelSize is %d: it must be as wide as the widest." (int $v.reductionWidth) $role $tp) }}{{ end -}}
{{- if and (eq $r.device "cuda") (not (hasKey $r.resources.limits "nvidia.com/gpu")) }}{{ fail (printf "%s.device is cuda, but %s.resources.limits has no nvidia.com/gpu." $role $role) }}{{ end -}}
{{- include "baton.validateRanks" (dict "values" $v "role" $role) -}}
{{- include "baton.validateMemory" (dict "values" $v "role" $role) -}}
{{- if $r.autoscaling.enabled -}}
{{- if gt (int $r.autoscaling.minReplicas) (int $r.autoscaling.maxReplicas) }}{{ fail (printf "%s.autoscaling.minReplicas is %d, above maxReplicas %d." $role (int $r.autoscaling.minReplicas) (int $r.autoscaling.maxReplicas)) }}{{ end -}}
{{- if and (eq $v.autoscaler.type "keda") (not $v.autoscaler.prometheusUrl) }}{{ fail (printf "%s.autoscaling is enabled with autoscaler.type keda, but autoscaler.prometheusUrl is empty." $role) }}{{ end -}}
{{- end -}}
{{- range $flag := list "model" "host" "port" "landing-port" "advertise-host" "role" "worker-id" "ready-file" "tls-cert" "tls-key" "tls-ca" "hash-key-file" "cluster-secret-file" "shutdown-timeout-ms" "served-model-name" "tensor-parallel-size" "pipeline-parallel-size" "reduction-width" "log-format" "load-format" "dtype" "max-model-len" "kv-cache-memory" "require-rdma" "device" "nnodes" "node-rank" "master-addr" "master-port" -}}
{{- if hasKey $r.extraArgs $flag }}{{ fail (printf "%s.extraArgs has %s, which the chart sets from a value of its own." $role $flag) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- range $who := list "router" "prefill" "decode" "both" "loadTest" -}}
{{- include "baton.validateResources" (dict "who" $who "resources" (index $v $who).resources) -}}
{{- end -}}
{{- range $who := list "router" "prefill" "decode" "both" -}}
{{- include "baton.validateFlags" (dict "who" $who "values" (index $v $who)) -}}
{{- end -}}
{{- range $key := list "type" "ports" "selector" -}}
{{- if hasKey $v.router.service.spec $key }}{{ fail (printf "router.service.spec has %s, which the chart sets: use router.service.type or router.service.ports." $key) }}{{ end -}}
{{- end -}}
{{- range $flag := list "model" "host" "port" "grpc-port" "admin-port" "ready-file" "workers-kubernetes" "api-key" "api-key-file" "tls-cert" "tls-key" "tls-ca" "hash-key-file" "cluster-secret-file" "shutdown-timeout-ms" "served-model-name" "route-policy" "require-identical-failover" "log-format" "http-tls-cert" "http-tls-key" "tls-client-ca" "admin-without-client-cert" "allowed-origins" "allowed-hosts" -}}
{{- if hasKey $v.router.extraArgs $flag }}{{ fail (printf "router.extraArgs has %s, which the chart sets from a value of its own." $flag) }}{{ end -}}
{{- end -}}
{{- end }}
