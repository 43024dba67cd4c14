{{/* Workers as a LeaderWorkerSet has them: groups of as many pods as a worker has nodes. The one with index 0 leads: it serves, and routers know it. */}}
{{- define "baton.rolling" -}}
{{- if eq . "prefill" }}{maxSurge: 0, maxUnavailable: 1}{{ else }}{maxSurge: 1, maxUnavailable: 0}{{ end -}}
{{- end }}

{{- define "baton.workerSetMeta" -}}
labels:
  {{- include "baton.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .role }}
{{- with (index .root.Values .role).exclusiveTopology }}
annotations: {leaderworkerset.sigs.k8s.io/exclusive-topology: {{ . | quote }}}
{{- end }}
{{- end }}

{{- define "baton.workerSet" -}}
{{- $v := index .root.Values .role -}}
{{- if not $v.autoscaling.enabled }}
replicas: {{ $v.replicas }}
{{- end }}
startupPolicy: LeaderCreated   # ranks wait ten minutes for each other, in any order
rolloutStrategy:
  type: RollingUpdate
  # As with a Deployment: decode never loses its only worker, prefill makes room.
  rollingUpdateConfiguration: {{ include "baton.rolling" .role }}
leaderWorkerTemplate:
  size: {{ $v.nodes }}
  restartPolicy: RecreateGroupOnPodRestart   # ranks end together when one is lost, and begin together
  leaderTemplate: {{- include "baton.workerPod" (dict "root" .root "role" .role "other" false) | nindent 4 }}
  workerTemplate: {{- include "baton.workerPod" (dict "root" .root "role" .role "other" true) | nindent 4 }}
{{- end }}
