{{/* Names of objects: at most 40 characters, so that suffixes fit. */}}
{{- define "qwen3-tts.fullname" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- .Values.fullnameOverride | default $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels that select a component's pods. Takes a list: the root and the component. */}}
{{- define "qwen3-tts.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "qwen3-tts.labels" -}}
{{- $root := index . 0 -}}
{{ include "qwen3-tts.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "qwen3-tts.secret" -}}
{{- .Values.secrets.existing | default (include "qwen3-tts.fullname" .) -}}
{{- end -}}

{{/* Absolute, so that the resolver does not try the search domains first. */}}
{{- define "qwen3-tts.serverHost" -}}
{{- printf "%s-server.%s.svc.%s." (include "qwen3-tts.fullname" .) .Release.Namespace .Values.clusterDomain -}}
{{- end -}}

{{- define "qwen3-tts.image" -}}
image: {{ printf "%s:%s" .repository .tag | quote }}
imagePullPolicy: {{ .pullPolicy }}
{{- end -}}
