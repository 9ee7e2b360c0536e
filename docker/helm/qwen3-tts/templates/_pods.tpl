{{/* Shared by the pods of all components. Service links would put variables into the servers' environment. */}}
{{- define "qwen3-tts.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "qwen3-tts.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "qwen3-tts.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Spreads a component's pods over the nodes. Takes a list: the root and the component. */}}
{{- define "qwen3-tts.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "qwen3-tts.selector" . | nindent 6 }}
{{- end -}}

{{/* A disruption budget. Takes a list: the root and the component. */}}
{{- define "qwen3-tts.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "qwen3-tts.fullname" (index . 0) }}-{{ index . 1 }}
  labels: {{- include "qwen3-tts.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "qwen3-tts.selector" . | nindent 6 }}
{{- end -}}
