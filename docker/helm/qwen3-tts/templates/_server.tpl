{{- define "qwen3-tts.preset" -}}
{{- $known := keys .Values.presets | sortAlpha | join ", " -}}
{{- get .Values.presets .Values.preset | required (printf "preset is %q: presets has %s" .Values.preset $known) | toYaml -}}
{{- end -}}

{{/* Settings of the engine: the preset's, overridden by server.settings. */}}
{{- define "qwen3-tts.settings" -}}
{{- $preset := include "qwen3-tts.preset" . | fromYaml -}}
{{- merge (deepCopy .Values.server.settings) ($preset.settings | default dict) | toYaml -}}
{{- end -}}

{{/* Variables of the export and the server. */}}
{{- define "qwen3-tts.commonEnv" -}}
- {name: QWEN3_TTS_CHECKPOINT, value: {{ .Values.server.checkpoint.name | quote }}}
- {name: CODEC_FORM, value: {{ .Values.server.codecForm }}}
{{- range $name, $value := .Values.server.extraEnv }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}

{{- define "qwen3-tts.serverEnv" -}}
{{- include "qwen3-tts.commonEnv" . }}
- {name: HF_HUB_OFFLINE, value: "1"}  # the init container has downloaded everything
- {name: QWEN3_TTS_MPS, value: {{ .Values.server.mps | quote }}}
- {name: QWEN3_TTS_DRAIN_SECONDS, value: {{ .Values.server.drainSeconds | quote }}}
{{- range $name, $value := include "qwen3-tts.settings" . | fromYaml }}
- {name: QWEN3_TTS_{{ upper $name }}, value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}}
{{- end }}
{{- if or .Values.secrets.existing .Values.secrets.adminKey }}
- name: QWEN3_TTS_ADMIN_KEY
  valueFrom:
    secretKeyRef: {name: {{ include "qwen3-tts.secret" . }}, key: admin-key, optional: true}
{{- end }}
{{- if eq .Values.voices.store "database" }}
- name: QWEN3_TTS_VOICES_DSN
  valueFrom:
    secretKeyRef: {name: {{ include "qwen3-tts.secret" . }}, key: voices-dsn}
{{- end }}
{{- end -}}

{{- define "qwen3-tts.gpu" -}}
{{- $preset := include "qwen3-tts.preset" . | fromYaml -}}
requests:
  cpu: {{ $preset.cpu | quote }}
  memory: {{ $preset.memory }}
limits:
  memory: {{ $preset.memory }}
  {{ .Values.server.gpuResource }}: 1
{{- end -}}

{{- define "qwen3-tts.cacheVolume" -}}
name: cache
{{- if eq .Values.cache.type "claim" }}
persistentVolumeClaim:
  claimName: {{ .Values.cache.claim | default (printf "%s-cache" (include "qwen3-tts.fullname" .)) }}
{{- else if eq .Values.cache.type "node" }}
hostPath: {path: {{ .Values.cache.path | quote }}, type: Directory}
{{- else }}
emptyDir: {}
{{- end }}
{{- end -}}

{{- define "qwen3-tts.voicesVolume" -}}
name: voices
{{- if eq .Values.voices.store "claim" }}
persistentVolumeClaim:
  claimName: {{ include "qwen3-tts.fullname" . }}-voices
{{- else }}
emptyDir: {}
{{- end }}
{{- end -}}
