{{/* Prefix of the names of all objects of the release. */}}
{{- define "rlrun.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains "rlrun" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-rlrun" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "rlrun.selectorLabels" -}}
app.kubernetes.io/name: rlrun
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rlrun.labels" -}}
{{ include "rlrun.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: rlrun
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "rlrun.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "rlrun.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name must name an existing ServiceAccount when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* Lease of leader election, in the release's namespace. */}}
{{- define "rlrun.leaseName" -}}
{{- printf "%s-operator" (include "rlrun.fullname" .) -}}
{{- end -}}

{{/* Name of the Secret with the S3 credentials. */}}
{{- define "rlrun.s3SecretName" -}}
{{- if .Values.s3.credentials.create -}}
{{- printf "%s-s3" (include "rlrun.fullname" .) -}}
{{- else -}}
{{- required "S3 credentials are required: set s3.credentials.existingSecret (a Secret in the release's namespace with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), s3.credentials.create or s3.credentials.workloadIdentity" .Values.s3.credentials.existingSecret -}}
{{- end -}}
{{- end }}

{{/* Repository of an image; those of the project are prefixed with images.registry. Argument: (list name $). */}}
{{- define "rlrun.repository" -}}
{{- $name := index . 0 -}}
{{- $images := (index . 1).Values.images -}}
{{- $repository := (get $images $name).repository -}}
{{- if and $images.registry (ne $name "inference") -}}
{{- printf "%s/%s" (trimSuffix "/" $images.registry) $repository -}}
{{- else -}}
{{- $repository -}}
{{- end -}}
{{- end }}

{{/* Digest or tag of an image; an empty tag means the chart's appVersion. Argument: (list name $). */}}
{{- define "rlrun.tag" -}}
{{- $image := get (index . 1).Values.images (index . 0) -}}
{{- default (default (index . 1).Chart.AppVersion $image.tag) $image.digest -}}
{{- end }}

{{/* Reference of an image. Argument: (list name $). */}}
{{- define "rlrun.image" -}}
{{- $tag := include "rlrun.tag" . -}}
{{- printf "%s%s%s" (include "rlrun.repository" .) (ternary "@" ":" (hasPrefix "sha256:" $tag)) $tag -}}
{{- end }}

{{- define "rlrun.operatorImage" -}}
{{- include "rlrun.image" (list "operator" .) -}}
{{- end }}

{{- define "rlrun.orchestratorImage" -}}
{{- include "rlrun.image" (list "orchestrator" .) -}}
{{- end }}

{{/* Secret with the keys that sign the permission of environments to use the egress proxy. */}}
{{- define "rlrun.egressSecretName" -}}
{{- default (printf "%s-egress" (include "rlrun.fullname" .)) .Values.egress.signingKey.existingSecret -}}
{{- end }}

{{/* Secret with the certificate of rlrun-server. */}}
{{- define "rlrun.serverCertificate" -}}
{{- default (printf "%s-server-certificate" (include "rlrun.leaseName" .)) .Values.server.tls.existingSecret -}}
{{- end }}

{{/* Port of rlrun-server and its Service. */}}
{{- define "rlrun.serverPort" -}}
{{- ternary "https" "http" .Values.server.tls.enabled -}}
{{- end }}

{{/* The Service as the API server's proxy names it. */}}
{{- define "rlrun.serverProxyName" -}}
{{- printf "%s%s-server:%s" (ternary "https:" "" .Values.server.tls.enabled) (include "rlrun.fullname" .) (include "rlrun.serverPort" .) -}}
{{- end }}

{{/* Settings file of the operator; its schema is operator/rlrun_operator/config/settings.py. */}}
{{- define "rlrun.settings" -}}
{{- $root := . -}}
images:
{{- range $name := list "orchestrator" "trainer" "inference" }}
  {{ $name }}:
    repository: {{ include "rlrun.repository" (list $name $root) | quote }}
    tag: {{ include "rlrun.tag" (list $name $root) | quote }}
    pullPolicy: {{ (get $root.Values.images $name).pullPolicy }}
{{- end }}
imagePullSecrets: {{ toJson .Values.runs.imagePullSecrets }}
s3:
  bucket: {{ required "s3.bucket is required: the bucket for checkpoints, adapters and environment packages" .Values.s3.bucket | quote }}
  prefix: {{ .Values.s3.prefix | quote }}
  region: {{ .Values.s3.region | quote }}
  {{- with .Values.s3.endpoint }}
  endpointUrl: {{ . | quote }}
  {{- end }}
  addressingStyle: {{ .Values.s3.addressingStyle }}
  {{- if and (eq .Values.s3.addressingStyle "virtual") (contains "." .Values.s3.bucket) }}
  {{- range list .Values.s3.endpoint .Values.s3.publicEndpoint }}
  {{- if or (hasPrefix "https:" .) (empty $root.Values.s3.endpoint) }}
  {{- fail "s3.addressingStyle is virtual, and s3.bucket has a dot: certificates of S3 servers do not cover its host name. Set s3.addressingStyle to path, or use a bucket without a dot" }}
  {{- end }}
  {{- end }}
  {{- end }}
  {{- if not .Values.s3.credentials.workloadIdentity }}
  credentialsSecret:
    namespace: {{ .Release.Namespace | quote }}
    name: {{ include "rlrun.s3SecretName" . | quote }}
  {{- else if or .Values.s3.credentials.create .Values.s3.credentials.existingSecret }}
  {{- fail "s3.credentials: set one of workloadIdentity, existingSecret and create" }}
  {{- end }}
{{- if .Values.server.tls.enabled }}
storageServer: {{ printf "https://%s-server.%s.svc:8443" (include "rlrun.fullname" .) .Release.Namespace | quote }}
storageServerCertificate:
  secret:
    namespace: {{ .Release.Namespace | quote }}
    name: {{ include "rlrun.serverCertificate" . | quote }}
  create: {{ empty .Values.server.tls.existingSecret }}
{{- else }}
storageServer: {{ printf "http://%s-server.%s.svc:8080" (include "rlrun.fullname" .) .Release.Namespace | quote }}
{{- end }}
computeSizes:
  {{- toYaml .Values.runs.computeSizes | nindent 2 }}
orchestratorResources:
  {{- toYaml .Values.runs.orchestratorResources | nindent 2 }}
sidecarResources:
  {{- toYaml .Values.runs.sidecarResources | nindent 2 }}
fetcherResources:
  {{- toYaml .Values.runs.fetcherResources | nindent 2 }}
shmSize: {{ .Values.runs.shmSize | quote }}
{{- with .Values.runs.ephemeralStorage }}
ephemeralStorage:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.runs.environments }}
environments:
  hostUsers: {{ ne (toString .hostUsers) "false" }}
  runtimeClassName: {{ .runtimeClassName | default "" | quote }}
{{- end }}
networkPolicies: {{ .Values.runs.networkPolicies }}
{{- with .Values.runs.dns }}
dns:
  namespaceLabels: {{ toJson .namespaceLabels }}
  podLabels: {{ toJson (.podLabels | default dict) }}
  cidrs: {{ toJson (.cidrs | default list) }}
{{- end }}
reservedSecretNames: {{ toJson (.Values.runs.reservedSecretNames | default list) }}
secretLabel: {{ .Values.runs.secretLabel | default "" | quote }}
environmentOwners: {{ toJson (.Values.runs.environmentOwners | default dict) }}
priorityClasses: {{ toJson (.Values.runs.priorityClasses | default list) }}
privateAddresses: {{ toJson (.Values.runs.privateAddresses | default list) }}
{{- if .Values.kueue.enabled }}
kueue:
  priorityClasses: {{ toJson (.Values.kueue.priorityClasses | default list) }}
{{- end }}
{{- if .Values.egress.enabled }}
egress:
  host: {{ printf "%s-egress.%s.svc" (include "rlrun.fullname" .) .Release.Namespace | quote }}
  allowed: {{ toJson (.Values.egress.allowed | default list) }}
  keySecret:
    namespace: {{ .Release.Namespace | quote }}
    name: {{ include "rlrun.egressSecretName" . | quote }}
{{- end }}
defaults:
  checkpointInterval: {{ int .Values.runs.defaults.checkpointInterval }}
serving:
  replicas: {{ int .Values.serving.replicas }}
  maxLoras: {{ int .Values.serving.maxLoras }}
  maxCpuLoras: {{ int .Values.serving.maxCpuLoras }}
queue: {{ toJson (.Values.queue | default dict) }}
pollSeconds: {{ .Values.operator.pollSeconds }}
resyncSeconds: {{ .Values.operator.resyncSeconds }}
artifactSweepSeconds: {{ .Values.operator.artifactSweepSeconds }}
{{- with .Values.operator.api }}
api: {qps: {{ .qps }}, burst: {{ int .burst }}}
{{- end }}
workers: {{ int .Values.operator.workers }}
s3Threads: {{ int .Values.operator.s3Threads }}
artifactDeletionSeconds: {{ .Values.operator.artifactDeletionSeconds }}
watchNamespaces: {{ toJson .Values.operator.watchNamespaces }}
leaseNamespace: {{ .Release.Namespace | quote }}
leaseName: {{ include "rlrun.leaseName" . | quote }}
leaseSeconds: {{ .Values.operator.leaseSeconds | default 15 }}
httpPort: 8080
logLevel: {{ .Values.operator.logLevel }}
{{- end }}

{{/* Variables of rlrun-server for requests of users; server/rlrun_server/runtime/settings.py. */}}
{{- define "rlrun.serverUserEnv" -}}
- {name: RLRUN_SERVER_BUCKET, value: {{ .Values.s3.bucket | quote }}}
- {name: RLRUN_SERVER_PREFIX, value: {{ .Values.s3.prefix | quote }}}
- {name: RLRUN_SERVER_PUBLIC_ENDPOINT, value: {{ .Values.s3.publicEndpoint | quote }}}
- {name: RLRUN_SERVER_ADDRESSING_STYLE, value: {{ .Values.s3.addressingStyle }}}
- {name: RLRUN_SERVER_ENVIRONMENT_OWNERS, value: {{ toJson (.Values.runs.environmentOwners | default dict) | quote }}}
{{- if .Values.users.apiKeys }}
- {name: RLRUN_SERVER_API_KEY_SECRET, value: {{ printf "%s/%s-server-api-keys" .Release.Namespace (include "rlrun.fullname" .) | quote }}}
{{- if .Values.users.apiKeysMayWrite }}
- {name: RLRUN_SERVER_API_KEYS_MAY_WRITE, value: "true"}
{{- end }}
{{- end }}
{{- end }}

{{- define "rlrun.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "rlrun.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/*
Annotations of a hook after an uninstallation. post-delete: the operator is being deleted then, and cannot add its
finalizer again. Its account and its permissions are deleted too, so that the Job needs its own, as hooks.
*/}}
{{- define "rlrun.uninstallHook" -}}
helm.sh/hook: post-delete
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
