{{/* "true" if there are certificates of private authorities. */}}
{{- define "rlrun.hasCaBundle" -}}
{{- $ca := .Values.caBundle | default dict -}}
{{- $sources := list $ca.pem ($ca.configMap | default dict).name ($ca.secret | default dict).name | compact -}}
{{- if gt (len $sources) 1 -}}
{{- fail "caBundle: set one of pem, configMap.name and secret.name" -}}
{{- end -}}
{{- if $sources }}true{{ end -}}
{{- end }}

{{/*
Init container that writes the public authorities and those of caBundle into one file: variables of clients replace
authorities, and none adds to them. Argument: (list image $ securityContext); `image` is one of `images`.
*/}}
{{- define "rlrun.caBundleInitContainer" -}}
{{- $root := index . 1 -}}
name: ca-bundle
image: {{ include "rlrun.image" . | quote }}
imagePullPolicy: {{ (get $root.Values.images (index . 0)).pullPolicy }}
command: [python, -m, rlrun.service.trust_bundle, /etc/rlrun-ca/ca-bundle.crt]
env:
  {{- if $root.Values.caBundle.pem }}
  - {name: RLRUN_CA_BUNDLE, value: {{ $root.Values.caBundle.pem | quote }}}
  {{- else }}
  - {name: RLRUN_CA_BUNDLE_FILE, value: /etc/rlrun-ca-source/ca.crt}
  {{- end }}
securityContext: {{ toJson (index . 2) }}
resources:
  requests: {cpu: 50m, memory: 64Mi}
  limits: {memory: 128Mi}
volumeMounts:
  - {name: ca-bundle, mountPath: /etc/rlrun-ca}
  {{- if not $root.Values.caBundle.pem }}
  - {name: ca-bundle-source, mountPath: /etc/rlrun-ca-source, readOnly: true}
  {{- end }}
{{- end }}

{{- define "rlrun.caBundleVolumes" -}}
{{- if include "rlrun.hasCaBundle" . -}}
- name: ca-bundle
  emptyDir: {medium: Memory, sizeLimit: 4Mi}
{{- with .Values.caBundle.configMap | default dict }}
{{- if .name }}
- name: ca-bundle-source
  configMap:
    name: {{ .name | quote }}
    items:
      - {key: {{ .key | quote }}, path: ca.crt}
{{- end }}
{{- end }}
{{- with .Values.caBundle.secret | default dict }}
{{- if .name }}
- name: ca-bundle-source
  secret:
    secretName: {{ .name | quote }}
    items:
      - {key: {{ .key | quote }}, path: ca.crt}
{{- end }}
{{- end }}
{{- end -}}
{{- end }}

{{/*
Hosts that are reached without the proxy, as JSON: this machine, names of the cluster, and where clouds give credentials
and metadata.
*/}}
{{- define "rlrun.noProxy" -}}
{{- $names := list "localhost" "127.0.0.1" "::1" ".svc" ".cluster.local" -}}
{{- $cloud := list "169.254.169.254" "169.254.170.2" "169.254.170.23" "fd00:ec2::254" "fd00:ec2::23" "metadata.google.internal" -}}
{{- $own := (.Values.proxy | default dict).noProxy | default list -}}
{{- range $own -}}
{{- if regexMatch "/.*:" . -}}
{{- fail (printf "proxy.noProxy: %s is a network with a port, which clients do not match: remove the port, or list addresses with a port" .) -}}
{{- end -}}
{{- end -}}
{{- toJson (concat $names $cloud $own) -}}
{{- end }}

{{/* Variables of the proxy and the authorities. Programs read the names of the proxy's in upper or in lower case. */}}
{{- define "rlrun.outgoingEnv" -}}
{{- $direct := join "," (include "rlrun.noProxy" . | fromJsonArray) -}}
{{- with .Values.proxy }}
{{- if or .httpsProxy .httpProxy }}
{{- range $name, $value := dict "HTTPS_PROXY" .httpsProxy "HTTP_PROXY" .httpProxy "NO_PROXY" $direct }}
{{- if $value }}
- {name: {{ $name }}, value: {{ $value | quote }}}
- {name: {{ lower $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if include "rlrun.hasCaBundle" . }}
{{- if not .Values.caBundle.pem }}
- {name: RLRUN_CA_BUNDLE_FILE, value: /etc/rlrun-ca-source/ca.crt}
{{- end }}
{{- range list "SSL_CERT_FILE" "REQUESTS_CA_BUNDLE" "AWS_CA_BUNDLE" "CURL_CA_BUNDLE" }}
- {name: {{ . }}, value: /etc/rlrun-ca/ca-bundle.crt}
{{- end }}
{{- end }}
{{- end }}
