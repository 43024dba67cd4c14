{{/* The pod of a worker: (dict "root" $ "role" "decode" "other" false). `other`: of a worker over several nodes, one that does not lead. */}}
{{- define "baton.workerPod" -}}
{{- $root := .root -}}
{{- $role := .role -}}
{{- $v := index $root.Values $role -}}
metadata:
  labels:
    {{- include "baton.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $role }}
    {{ if .other }}baton/rank{{ else }}baton/worker{{ end }}: "true"
    {{- with $root.Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with $root.Values.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "baton.fullname" $root }}-worker
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: {{ $root.Values.drain.gracePeriodSeconds }}
  securityContext: {{- include "baton.podSecurity" $root | nindent 4 }}
  {{- include "baton.placement" (dict "root" $root "component" $role "values" $v "together" (gt (int $v.nodes) 1)) | nindent 2 }}
  containers:
    - name: worker
      image: {{ include "baton.image" $root }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: [/usr/bin/baton, worker]
      args:
        - --role={{ $role }}
        - --worker-id=$(POD_NAME)
        - --advertise-host=$(POD_IP)
        {{- include "baton.commonArgs" $root | nindent 8 }}
        - --port=9100
        - --landing-port=9101
        - --load-format={{ $root.Values.model.loadFormat }}
        - --dtype={{ $root.Values.model.dtype }}
        - --max-model-len={{ int64 $root.Values.model.maxModelLen }}
        - --tensor-parallel-size={{ $v.tensorParallelSize }}
        - --pipeline-parallel-size={{ $v.pipelineParallelSize }}
        {{- if gt (int $v.nodes) 1 }}
        # The leader is known by its own address, which is there before its name is.
        - --nnodes={{ $v.nodes }}
        - --node-rank={{ if .other }}$(LWS_WORKER_INDEX){{ else }}0{{ end }}
        - --master-addr={{ if .other }}$(LWS_LEADER_ADDRESS){{ else }}$(POD_IP){{ end }}
        - --master-port=29501
        {{- end }}
        - --reduction-width={{ $root.Values.reductionWidth }}
        - --device={{ $v.device }}
        {{- if $v.kvCacheMemory }}
        - --kv-cache-memory={{ int64 $v.kvCacheMemory }}
        {{- end }}
        {{- if $root.Values.rdma.enabled }}
        - --kv-trusted-network
        {{- end }}
        {{- if $root.Values.rdma.required }}
        - --require-rdma
        {{- end }}
        {{- include "baton.extraArgs" $v.extraArgs | nindent 8 }}
      env:
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        {{- with $v.env }}{{ toYaml . | nindent 8 }}{{ end }}
      ports:
        - {name: grpc, containerPort: 9100}
        - {name: landing, containerPort: 9101}
        {{- if gt (int $v.nodes) 1 }}
        - {name: ranks, containerPort: 29501}
        {{- end }}
      # gRPC wants a client certificate, which a kubelet has not: ready is a file, alive is a port that takes connections.
      # A worker that stands still without dying is seen by routers, which send requests elsewhere.
      startupProbe:
        exec: {command: [/usr/bin/test, -e, /run/baton/ready]}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ ceil (divf $v.startupSeconds 5) | int }}
      readinessProbe:
        exec: {command: [/usr/bin/test, -e, /run/baton/ready]}
        periodSeconds: 10
        timeoutSeconds: 5   # a program that starts beside busy threads may take more than the second it has else
      livenessProbe:
        tcpSocket: {port: grpc}
        periodSeconds: 10
        failureThreshold: 6
        timeoutSeconds: 5
      resources:
        {{- $resources := deepCopy $v.resources }}
        {{- if $root.Values.rdma.enabled }}
        {{- range $key, $count := $root.Values.rdma.resources }}
        {{- $_ := set $resources.limits $key $count }}
        {{- end }}
        {{- end }}
        {{- toYaml $resources | nindent 8 }}
      securityContext:
        {{- include "baton.containerSecurity" $root | nindent 8 }}
          {{- if $root.Values.rdma.enabled }}
          add: [IPC_LOCK]
          {{- end }}
      volumeMounts:
        {{- include "baton.commonMounts" $root | nindent 8 }}
        - {name: shm, mountPath: /dev/shm}
        {{- with $v.extraVolumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    {{- include "baton.commonVolumes" $root | nindent 4 }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $root.Values.shmSize }}}
    {{- with $v.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end }}
