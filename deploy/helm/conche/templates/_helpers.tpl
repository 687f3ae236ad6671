{{- define "conche.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "conche.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "conche.labels" -}}
{{ include "conche.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "conche.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- define "conche.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "conche.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "conche.claim" -}}
{{ .Values.persistence.existingClaim | default (printf "%s-data" (include "conche.name" .)) }}
{{- end }}

{{- define "conche.scheme" -}}
{{ ternary "HTTPS" "HTTP" (ne .Values.tls.secretName "") }}
{{- end }}

{{/* "yes" where more than one pod can serve at once. */}}
{{- define "conche.severalReplicas" -}}
{{ if or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) }}yes{{ end }}
{{- end }}

{{/* What a schema cannot say: values that contradict each other stop the rendering. */}}
{{- define "conche.check" -}}
{{- $v := .Values }}
{{- if include "conche.severalReplicas" . }}
  {{- if $v.persistence.enabled }}
    {{- fail (printf "\n\npersistence.enabled with more than one replica (replicas: %d, autoscaling.enabled: %t):\nthe volume is %s and belongs to one pod; the embedded FAQ store on it is an SQLite file with one writer.\nEither replicas: 1 without autoscaling, or faq.store: milvus, which replicas share, with persistence.enabled: false.\n" (int $v.replicas) $v.autoscaling.enabled $v.persistence.accessMode) }}
  {{- end }}
  {{- if and (eq $v.faq.store "embedded") (not $v.faq.perReplica) }}
    {{- fail (printf "\n\nfaq.store: embedded with more than one replica (replicas: %d, autoscaling.enabled: %t):\neach replica would have a FAQ of its own, and what one has acknowledged the others would not find.\nEither faq.store: milvus, which replicas share; or faq.store: none; or faq.perReplica: true, if the FAQ comes\nfrom faq.configMap and nobody writes to it.\n" (int $v.replicas) $v.autoscaling.enabled) }}
  {{- end }}
{{- end }}
{{- if and (eq $v.faq.store "milvus") (not $v.milvus.uri) }}
  {{- fail "\n\nfaq.store: milvus needs milvus.uri, such as http://milvus.milvus.svc:19530\n" }}
{{- end }}
{{- if and (eq $v.faq.store "none") $v.faq.configMap.name }}
  {{- fail "\n\nfaq.configMap.name is set, and faq.store: none leaves no FAQ to bring it into\n" }}
{{- end }}
{{- if and $v.apiKeys.metricsNeedKey (not $v.apiKeys.secret.name) }}
  {{- fail "\n\napiKeys.metricsNeedKey needs apiKeys.secret.name: without keys nothing needs one\n" }}
{{- end }}
{{- if and $v.metrics.prometheusRule.enabled (not $v.metrics.serviceMonitor.enabled) }}
  {{- fail "\n\nmetrics.prometheusRule.enabled needs metrics.serviceMonitor.enabled: the rules ask for the job that it names\n" }}
{{- end }}
{{- if and $v.metrics.serviceMonitor.enabled $v.apiKeys.metricsNeedKey (not $v.metrics.serviceMonitor.keySecret.name) }}
  {{- fail "\n\napiKeys.metricsNeedKey and the ServiceMonitor: metrics.serviceMonitor.keySecret.name names the secret with the key\n" }}
{{- end }}
{{- if and $v.autoscaling.enabled (lt (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) }}
  {{- fail (printf "\n\nautoscaling.maxReplicas (%d) is less than autoscaling.minReplicas (%d)\n" (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) }}
{{- end }}
{{- if and $v.autoscaling.enabled (eq (int $v.autoscaling.cpuUtilization) 0) (not $v.autoscaling.queue.enabled) }}
  {{- fail "\n\nautoscaling.enabled with nothing to go by: set cpuUtilization above 0, or queue.enabled\n" }}
{{- end }}
{{- if eq (int $v.metrics.port) 8080 }}
  {{- fail "\n\nmetrics.port: 8080 is the service's own\n" }}
{{- end }}
{{- end }}
