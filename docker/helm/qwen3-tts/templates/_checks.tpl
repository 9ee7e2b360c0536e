{{/* Values that a schema cannot compare. Each message names the value and what to do. */}}
{{- define "qwen3-tts.checks" -}}
{{- include "qwen3-tts.checkVoices" . -}}
{{- include "qwen3-tts.checkSecrets" . -}}
{{- include "qwen3-tts.checkProxy" . -}}
{{- if .Values.autoscaling.enabled }}{{ include "qwen3-tts.checkAutoscaling" . }}{{ end -}}
{{- include "qwen3-tts.checkEnv" . -}}
{{- if and (eq .Values.cache.type "node") (not .Values.cache.path) -}}
{{- fail "cache.path: cache.type node requires a folder on each node that user 1000 may write" -}}
{{- end -}}
{{- if and (eq .Values.server.checkpoint.name "/checkpoint") (not .Values.server.checkpoint.claim) -}}
{{- fail "server.checkpoint.claim: the checkpoint /checkpoint requires a claim that holds it" -}}
{{- end -}}
{{- end -}}

{{- define "qwen3-tts.checkEnv" -}}
{{- range $name, $_ := .Values.server.extraEnv -}}
{{- if hasPrefix "QWEN3_TTS_" $name -}}
{{- fail (printf "server.extraEnv.%s: settings of the engine belong to server.settings" $name) -}}
{{- end -}}
{{- if has $name (list "CODEC_FORM" "HF_HUB_OFFLINE") -}}
{{- fail (printf "server.extraEnv.%s: the chart sets this variable" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "qwen3-tts.checkVoices" -}}
{{- $several := or .Values.autoscaling.enabled (gt (int .Values.server.replicas) 1) -}}
{{- if and (eq .Values.voices.store "claim") $several -}}
{{- fail "voices.store: a claim serves one server; use database for several" -}}
{{- end -}}
{{- if and (eq .Values.voices.store "claim") (eq .Values.server.rollout "surge") -}}
{{- fail "server.rollout: voices.store claim allows one pod at a time; use replace" -}}
{{- end -}}
{{- end -}}

{{- define "qwen3-tts.checkSecrets" -}}
{{- $secrets := .Values.secrets -}}
{{- if and $secrets.existing (or $secrets.adminKey $secrets.gatewayKeys $secrets.voicesDsn) -}}
{{- fail "secrets.existing: the Secret replaces adminKey, gatewayKeys and voicesDsn; set one or the other" -}}
{{- end -}}
{{- if and (eq .Values.voices.store "database") (not (or $secrets.existing $secrets.voicesDsn)) -}}
{{- fail "secrets.voicesDsn: voices.store database requires it, or secrets.existing with the key voices-dsn" -}}
{{- end -}}
{{- if and .Values.gateway.enabled .Values.gateway.auth (not (or $secrets.existing $secrets.gatewayKeys)) -}}
{{- fail "secrets.gatewayKeys: the gateway requires API keys (qwen3-tts gateway --new-key NAME), secrets.existing with the key gateway-keys, or gateway.auth=false" -}}
{{- end -}}
{{- end -}}

{{- define "qwen3-tts.checkProxy" -}}
{{- if eq .Values.proxy.type "gatewayAPI" -}}
{{- if not .Values.gatewayAPI.parentRefs -}}
{{- fail "gatewayAPI.parentRefs: proxy.type gatewayAPI requires the Gateway that serves the route" -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.servers) -}}
{{- fail "gateway.servers: proxy.type gatewayAPI requires the address of the Gateway's gRPC listener, or gateway.enabled=false" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.grpcFrom) -}}
{{- fail "networkPolicy.grpcFrom: proxy.type gatewayAPI requires the pods of the Gateway's proxy, or networkPolicy.enabled=false" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "qwen3-tts.checkAutoscaling" -}}
{{- if gt (int .Values.autoscaling.min) (int .Values.autoscaling.max) -}}
{{- fail (printf "autoscaling.min is %v: it must not exceed autoscaling.max, %v" .Values.autoscaling.min .Values.autoscaling.max) -}}
{{- end -}}
{{- if not .Values.autoscaling.prometheus -}}
{{- fail "autoscaling.prometheus: the address of Prometheus is required, such as http://prometheus.monitoring:9090" -}}
{{- end -}}
{{- $streams := include "qwen3-tts.streams" . | int -}}
{{- $slots := (include "qwen3-tts.settings" . | fromYaml).max_streams | default "auto" -}}
{{- $slots = eq (toString $slots) "auto" | ternary 256 $slots | int -}}
{{- if gt $streams $slots -}}
{{- fail (printf "autoscaling.streamsPerServer is %d: a server has max_streams, %d, slots" $streams $slots) -}}
{{- end -}}
{{- end -}}
