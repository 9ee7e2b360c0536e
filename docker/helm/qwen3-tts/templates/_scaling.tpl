{{/* Capacity of a server in streams. */}}
{{- define "qwen3-tts.streams" -}}
{{- $preset := include "qwen3-tts.preset" . | fromYaml -}}
{{- $unknown := printf "autoscaling.streamsPerServer: preset %s has no measured capacity; measure it (python -m scripts.benchmarks.serving) and set it" .Values.preset -}}
{{- .Values.autoscaling.streamsPerServer | default $preset.streams | required $unknown | int -}}
{{- end -}}
