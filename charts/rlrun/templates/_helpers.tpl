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

{{/* Labels of all objects: those of the chart, and commonLabels, which cannot replace them. */}}
{{- define "rlrun.labels" -}}
{{- merge (dict
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "rlrun"
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")
) (include "rlrun.selectorLabels" . | fromYaml) (omit (.Values.commonLabels | default dict) "app.kubernetes.io/component") | toYaml }}
{{- end }}

{{- define "rlrun.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "rlrun.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name must name an existing ServiceAccount when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* Names of the Secrets that the operator makes in the release's namespace, as JSON. */}}
{{- define "rlrun.platformSecrets" -}}
{{- $lease := include "rlrun.leaseName" . -}}
{{- toJson (list (printf "%s-run-tokens" $lease) (printf "%s-storage-grants" $lease) (include "rlrun.serverCertificate" .) (include "rlrun.egressSecretName" .) (include "rlrun.apiKeySecretName" .)) -}}
{{- end -}}

{{/* ClusterRoles that are bound in the namespaces of tenants, each by a RoleBinding of its name. */}}
{{- define "rlrun.operatorTenantRole" -}}
{{- printf "%s-operator-tenant" (include "rlrun.fullname" .) -}}
{{- end -}}
{{- define "rlrun.serverTenantRole" -}}
{{- printf "%s-server-tenant" (include "rlrun.fullname" .) -}}
{{- end -}}

{{/* RoleBinding in a namespace of operator.watchNamespaces. Argument: (list $ namespace role account). */}}
{{- define "rlrun.tenantBinding" -}}
{{- $root := index . 0 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ index . 2 }}
  namespace: {{ index . 1 }}
  labels:
    {{- include "rlrun.labels" $root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ index . 2 }}
subjects:
  - kind: ServiceAccount
    name: {{ index . 3 }}
    namespace: {{ $root.Release.Namespace }}
{{- end }}

{{/* Label of the namespaces of tenants, `key=value`. */}}
{{- define "rlrun.namespaceLabel" -}}
{{- .Values.operator.namespaceLabel | default "rlrun.dev/tenant=true" -}}
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

{{- define "rlrun.bucket" -}}
{{- required "s3.bucket is required: the bucket for checkpoints, adapters and environment packages" .Values.s3.bucket -}}
{{- end }}

{{/* S3Connection of all programs, as JSON: core/rlrun/api/base/s3_connection.py. */}}
{{- define "rlrun.s3Connection" -}}
{{- omit .Values.s3 "bucket" "prefix" "publicEndpoint" "credentials" | toJson -}}
{{- end }}

{{/* Variables of a program that uses the bucket with the credentials of the release. */}}
{{- define "rlrun.s3Env" -}}
- {name: RLRUN_S3_BUCKET, value: {{ include "rlrun.bucket" . | quote }}}
- {name: RLRUN_S3_PREFIX, value: {{ .Values.s3.prefix | quote }}}
- {name: RLRUN_S3_CONNECTION, value: {{ include "rlrun.s3Connection" . | quote }}}
{{- if not .Values.s3.credentials.workloadIdentity }}
{{- range $key := list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" "AWS_SESSION_TOKEN" }}
- name: {{ $key }}
  valueFrom:
    secretKeyRef:
      name: {{ include "rlrun.s3SecretName" $ }}
      key: {{ $key }}
      optional: {{ eq $key "AWS_SESSION_TOKEN" }}
{{- end }}
{{- end }}
{{- end }}

{{/* Repository of an image, with its registry or else that of all images. Argument: (list name $). */}}
{{- define "rlrun.repository" -}}
{{- $images := (index . 1).Values.images -}}
{{- $image := get $images (index . 0) -}}
{{- $registry := kindIs "string" $image.registry | ternary $image.registry $images.registry -}}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $image.repository }}
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

{{/* Secret with the digests of API keys. */}}
{{- define "rlrun.apiKeySecretName" -}}
{{- include "rlrun.fullname" . }}-server-api-keys
{{- end }}

{{/* Secret with the keys that sign the permission of environments to use the egress proxy. */}}
{{- define "rlrun.egressSecretName" -}}
{{- default (printf "%s-egress" (include "rlrun.fullname" .)) .Values.egress.signingKey.existingSecret -}}
{{- end }}

{{/* Secret with the certificate of rlrun-server. */}}
{{- define "rlrun.serverCertificate" -}}
{{- if (.Values.server.tls.certificate | default dict).enabled -}}
{{- if .Values.server.tls.existingSecret }}{{ fail "server.tls: set one of existingSecret and certificate.enabled" }}{{ end -}}
{{- printf "%s-server-tls" (include "rlrun.fullname" .) -}}
{{- else -}}
{{- default (printf "%s-server-certificate" (include "rlrun.leaseName" .)) .Values.server.tls.existingSecret -}}
{{- end -}}
{{- end }}

{{/* URL at which users' machines reach rlrun-server. Empty: through the API server. */}}
{{- define "rlrun.serverUrl" -}}
{{- $hosts := list -}}
{{- with .Values.server.ingress }}{{ if .enabled }}{{ $hosts = append $hosts .host }}{{ end }}{{ end -}}
{{- with .Values.server.httpRoute -}}
{{- if .enabled }}{{ range .hostnames }}{{ if not (hasPrefix "*" .) }}{{ $hosts = append $hosts . }}{{ end }}{{ end }}{{ end -}}
{{- end -}}
{{- if or .Values.users.serverUrl (empty $hosts) -}}
{{- .Values.users.serverUrl -}}
{{- else -}}
https://{{ first $hosts }}
{{- end -}}
{{- end }}

{{/* Settings of logins at the OIDC issuer as JSON, empty without one. */}}
{{- define "rlrun.oidc" -}}
{{- with .Values.server.oidc | default dict -}}
{{- if .issuer -}}
{{- $url := include "rlrun.serverUrl" $ -}}
{{- if not $url }}{{ fail "server.oidc needs users.serverUrl, server.ingress or server.httpRoute: the issuer sends browsers back there" }}{{ end -}}
{{- if not $.Values.server.page }}{{ fail "server.oidc needs server.page: true" }}{{ end -}}
{{- $_ := required "server.oidc.clientId is required: the id of the client at the issuer" .clientId -}}
{{- omit . "existingSecret" | merge (dict "redirectUrl" (printf "%s/" $url) "sessionSeconds" (int .sessionSeconds)) | toJson -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Peers that may scrape metrics, as YAML. One without a namespaceSelector is in the release's namespace. */}}
{{- define "rlrun.metricsPeers" -}}
{{- $peers := list -}}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) -}}
{{- range .Values.networkPolicy.from -}}
{{- $peers = append $peers (or (hasKey . "namespaceSelector") (hasKey . "ipBlock") | ternary . (set (deepCopy .) "namespaceSelector" $namespace)) -}}
{{- end -}}
{{- toJson $peers -}}
{{- end }}

{{/* Port of the DNS servers' pods. */}}
{{- define "rlrun.dnsPort" -}}
{{- int ((.Values.runs.dns | default dict).port | default 53) -}}
{{- end }}

{{/* Port of rlrun-server and its Service. */}}
{{- define "rlrun.serverPort" -}}
{{- ternary "https" "http" .Values.server.tls.enabled -}}
{{- end }}

{{- define "rlrun.serverPortNumber" -}}
{{- ternary 8443 8080 .Values.server.tls.enabled -}}
{{- end }}

{{/* URL of rlrun-server for pods. */}}
{{- define "rlrun.serverInCluster" -}}
{{- printf "%s://%s-server.%s.svc:%s" (include "rlrun.serverPort" .) (include "rlrun.fullname" .) .Release.Namespace (include "rlrun.serverPortNumber" .) -}}
{{- end }}

{{/* Path of rlrun-tinker on the host of rlrun-server, whose API of hosted clients has the SDK's path /api/v1, too. */}}
{{- define "rlrun.tinkerPrefix" -}}
/tinker
{{- end }}

{{/* Port of rlrun-tinker and its Service. */}}
{{- define "rlrun.tinkerPort" -}}
{{- ternary "https" "http" (not (empty .Values.tinker.tls.existingSecret)) -}}
{{- end }}

{{- define "rlrun.tinkerPortNumber" -}}
{{- ternary 8443 8080 (not (empty .Values.tinker.tls.existingSecret)) -}}
{{- end }}

{{/* The Service as the API server's proxy names it. */}}
{{- define "rlrun.serverProxyName" -}}
{{- printf "%s%s-server:%s" (ternary "https:" "" .Values.server.tls.enabled) (include "rlrun.fullname" .) (include "rlrun.serverPort" .) -}}
{{- end }}

{{/* Fields of PodShape (core/rlrun/api/base/pod_shape.py) that the values set, as JSON. */}}
{{- define "rlrun.podShape" -}}
{{- $values := . | default dict }}
{{- $shape := dict }}
{{- $names := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
{{- $classes := list "runtimeClassName" "schedulerName" "priorityClassName" }}
{{- range concat $names $classes (list "labels" "annotations" "meshInjection" "volumes" "volumeMounts") }}
{{- if get $values . }}{{ $_ := set $shape . (get $values .) }}{{ end }}
{{- end }}
{{- toJson $shape }}
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
  bucket: {{ include "rlrun.bucket" . | quote }}
  prefix: {{ .Values.s3.prefix | quote }}
  {{- include "rlrun.s3Connection" . | fromJson | toYaml | nindent 2 }}
  {{- if and (eq .Values.s3.addressingStyle "virtual") (contains "." .Values.s3.bucket) }}
  {{- range list .Values.s3.endpoint .Values.s3.publicEndpoint }}
  {{- if or (hasPrefix "https:" .) (empty $root.Values.s3.endpoint) }}
  {{- fail "s3.addressingStyle is virtual, but wildcard certificates do not cover s3.bucket, whose name contains a dot: set s3.addressingStyle to path, or use a bucket without a dot in its name" }}
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
storageServer: {{ include "rlrun.serverInCluster" . | quote }}
{{- if .Values.server.tls.enabled }}
storageServerCertificate:
  secret:
    namespace: {{ .Release.Namespace | quote }}
    name: {{ include "rlrun.serverCertificate" . | quote }}
  create: {{ not (or .Values.server.tls.existingSecret (.Values.server.tls.certificate | default dict).enabled) }}
{{- end }}
{{- if include "rlrun.hasCaBundle" . }}
caBundleFile: /etc/rlrun-ca/ca-bundle.crt
{{- end }}
{{- with .Values.proxy }}
{{- if or .httpsProxy .httpProxy }}
proxy:
  httpsProxy: {{ .httpsProxy | default "" | quote }}
  httpProxy: {{ .httpProxy | default "" | quote }}
  noProxy: {{ include "rlrun.noProxy" $root }}
{{- end }}
{{- end }}
computeSizes:
  {{- toYaml .Values.runs.computeSizes | nindent 2 }}
orchestratorResources:
  {{- toYaml .Values.runs.orchestratorResources | nindent 2 }}
sidecarResources:
  {{- toYaml .Values.runs.sidecarResources | nindent 2 }}
fetcherResources:
  {{- toYaml .Values.runs.fetcherResources | nindent 2 }}
{{- if hasKey .Values.runs "securityContext" }}
securityContext: {{ toJson .Values.runs.securityContext }}
{{- end }}
shmSize: {{ .Values.runs.shmSize | quote }}
gpuReadOnlyRootFilesystem: {{ eq (toString .Values.runs.gpuReadOnlyRootFilesystem) "true" }}
{{- with .Values.runs.ephemeralStorage }}
ephemeralStorage:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.runs.terminationGracePeriodSeconds }}
terminationGracePeriodSeconds: {{ toJson . }}
{{- end }}
orchestrator: {{ include "rlrun.podShape" .Values.runs.orchestrator }}
{{- $environments := .Values.runs.environments | default dict }}
environments: {{ fromJson (include "rlrun.podShape" $environments) | merge (dict "hostUsers" (ne (toString $environments.hostUsers) "false")) | toJson }}
networkPolicies: {{ .Values.runs.networkPolicies }}
{{- with .Values.runs.dns }}
dns:
  namespaceLabels: {{ toJson .namespaceLabels }}
  podLabels: {{ toJson (.podLabels | default dict) }}
  cidrs: {{ toJson (.cidrs | default list) }}
  port: {{ include "rlrun.dnsPort" $root }}
{{- end }}
metricsPeers: {{ include "rlrun.metricsPeers" . }}
modelEgress: {{ toJson .Values.runs.modelEgress }}
reservedSecretNames: {{ toJson (.Values.runs.reservedSecretNames | default list) }}
secretLabel: {{ .Values.runs.secretLabel | default "" | quote }}
environmentOwners: {{ toJson (.Values.runs.environmentOwners | default dict) }}
priorityClasses: {{ toJson (.Values.runs.priorityClasses | default list) }}
privateAddresses: {{ toJson (.Values.runs.privateAddresses | default list) }}
{{- if .Values.kueue.enabled }}
kueue:
  priorityClasses: {{ toJson (.Values.kueue.priorityClasses | default list) }}
{{- end }}
apiKeys:
  secret: {namespace: {{ .Release.Namespace | quote }}, name: {{ include "rlrun.apiKeySecretName" . | quote }}}
  enabled: {{ .Values.users.apiKeys }}
{{- if .Values.egress.enabled }}
egress:
  host: {{ printf "%s-egress.%s.svc" (include "rlrun.fullname" .) .Release.Namespace | quote }}
  allowed: {{ toJson (.Values.egress.allowed | default list) }}
  keySecret:
    namespace: {{ .Release.Namespace | quote }}
    name: {{ include "rlrun.egressSecretName" . | quote }}
  createKey: {{ empty .Values.egress.signingKey.existingSecret }}
{{- end }}
defaults:
  checkpointInterval: {{ int .Values.runs.defaults.checkpointInterval }}
serving:
  replicas: {{ int .Values.serving.replicas }}
  maxLoras: {{ int .Values.serving.maxLoras }}
  maxCpuLoras: {{ int .Values.serving.maxCpuLoras }}
  {{- with fromJson (include "rlrun.podShape" .Values.serving) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
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
{{- if .Values.gc.enabled }}
gc: {{ toJson (omit .Values.gc "enabled") }}
{{- end }}
watchNamespaces: {{ toJson .Values.operator.watchNamespaces }}
namespaceLabel: {{ include "rlrun.namespaceLabel" . | quote }}
{{- if .Values.rbac.create }}
tenantRoles:
  - {clusterRole: {{ include "rlrun.operatorTenantRole" . }}, account: {{ include "rlrun.serviceAccountName" . }}}
  {{- if .Values.users.apiKeys }}
  - {clusterRole: {{ include "rlrun.serverTenantRole" . }}, account: {{ include "rlrun.fullname" . }}-server}
  {{- end }}
{{- end }}
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
- {name: RLRUN_SERVER_ENVIRONMENT_OWNERS, value: {{ toJson (.Values.runs.environmentOwners | default dict) | quote }}}
{{- with .Values.operator.watchNamespaces }}
- {name: RLRUN_SERVER_NAMESPACES, value: {{ toJson . | quote }}}
{{- end }}
{{- if .Values.users.apiKeys }}
- {name: RLRUN_SERVER_API_KEY_SECRET, value: {{ printf "%s/%s" .Release.Namespace (include "rlrun.apiKeySecretName" .) | quote }}}
{{- if .Values.users.apiKeysMayWrite }}
- {name: RLRUN_SERVER_API_KEYS_MAY_WRITE, value: "true"}
{{- end }}
{{- end }}
{{- end }}

{{/*
Annotations of a hook after an uninstallation. post-delete: the operator is being deleted then, and cannot add its
finalizer again. Its account and its permissions are deleted too, so that the Job needs its own, as hooks.
*/}}
{{- define "rlrun.uninstallHook" -}}
helm.sh/hook: post-delete
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
