{{/* Metadata of an object in the release's namespace. Argument: (list $ name component); an empty component has no label. */}}
{{- define "rlrun.metadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "rlrun.labels" $root | nindent 2 }}
  {{- with index . 2 }}
  app.kubernetes.io/component: {{ . }}
  {{- end }}
{{- end }}

{{/* Labels of the chart with those of an object, which take precedence. Argument: (list $ labels). */}}
{{- define "rlrun.labelsWith" -}}
{{- merge (dict) (index . 1 | default dict) (include "rlrun.labels" (index . 0) | fromYaml) | toYaml -}}
{{- end }}

{{/* Labels by which a workload selects its pods. Argument: (list $ component). */}}
{{- define "rlrun.selector" -}}
{{ include "rlrun.selectorLabels" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/*
Pod template of a workload: what is its own, with the values that all workloads have. `pods` has them for all, and the
section of the workload for its own pods.

Argument: (list $ component section own). `own` is the YAML of a pod spec with one container, of which `image` names one
of `images`. It leaves out what the values say, and has more keys: `annotations` of the pod, `tmp`, the size of /tmp,
`connects`, true for a Job that needs more than the API server, and `bare`, true for one that gets no volumes of the
values.
*/}}
{{- define "rlrun.podTemplate" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $all := $root.Values.pods | default dict -}}
{{- $values := get $root.Values (index . 2) | default dict -}}
{{- $own := index . 3 | fromYaml -}}
{{- with $own.Error }}{{ fail (printf "pods of %s: %s" $component .) }}{{ end -}}
{{- $added := dict "volumes" list "volumeMounts" list -}}
{{- range $key := default false $own.bare | ternary (list "extraEnv") (list "extraEnv" "volumes" "volumeMounts") -}}
{{- $_ := set $added $key (concat (get $all $key | default list) (get $values $key | default list)) -}}
{{- end -}}
{{- $merged := dict -}}
{{- range $key := list "securityContext" "containerSecurityContext" "podLabels" "podAnnotations" -}}
{{- /* Key by key: mergeOverwrite would ignore false. null removes a key. */}}
{{- $map := deepCopy (get $all $key | default dict) -}}
{{- range $name, $value := get $values $key | default dict -}}
{{- $map = kindIs "invalid" $value | ternary (omit $map $name) (set $map $name $value) -}}
{{- end -}}
{{- $_ := set $merged $key $map -}}
{{- end -}}

{{- /* Jobs connect to the API server of their own cluster only, unless they say so. */}}
{{- $connects := or (ne (index . 2) "jobs") (default false $own.connects) -}}
{{- $trusts := and $connects (include "rlrun.hasCaBundle" $root) -}}
{{- $container := first $own.containers -}}
{{- $image := $container.image -}}
{{- $outgoing := $connects | ternary (include "rlrun.outgoingEnv" $root | fromYamlArray) list -}}
{{- $env := list -}}
{{- range concat ($container.env | default list) (list (dict "name" "TMPDIR" "value" "/tmp")) $outgoing $added.extraEnv -}}
{{- $variable := . -}}
{{- $others := list -}}
{{- range $env }}{{ if ne .name $variable.name }}{{ $others = append $others . }}{{ end }}{{ end -}}
{{- $env = append $others $variable -}}
{{- end -}}
{{- $mounts := list (dict "name" "tmp" "mountPath" "/tmp") -}}
{{- $volumes := list (dict "name" "tmp" "emptyDir" (dict "sizeLimit" $own.tmp)) -}}
{{- if $trusts -}}
{{- /* Not read only: a container that starts again because of other authorities writes the bundle anew. */}}
{{- $mounts = append $mounts (dict "name" "ca-bundle" "mountPath" "/etc/rlrun-ca") -}}
{{- if not $root.Values.caBundle.pem -}}
{{- $mounts = append $mounts (dict "name" "ca-bundle-source" "mountPath" "/etc/rlrun-ca-source" "readOnly" true) -}}
{{- end -}}
{{- $volumes = concat $volumes (include "rlrun.caBundleVolumes" $root | fromYamlArray) -}}
{{- end -}}
{{- $container = merge (dict
  "image" (include "rlrun.image" (list $image $root))
  "imagePullPolicy" (get $root.Values.images $image).pullPolicy
  "env" $env
  "securityContext" $merged.containerSecurityContext
  "volumeMounts" (concat ($container.volumeMounts | default list) $mounts $added.volumeMounts)
) $container -}}

{{- $selector := include "rlrun.selector" (list $root $component) | fromYaml -}}
{{- $spec := merge (dict
  "enableServiceLinks" false
  "securityContext" $merged.securityContext
  "containers" (list $container)
  "volumes" (concat ($own.volumes | default list) $volumes $added.volumes)
) (omit $own "annotations" "tmp" "connects" "bare" "topologySpreadConstraints") -}}
{{- if $trusts -}}
{{- $writer := include "rlrun.caBundleInitContainer" (list $image $root $merged.containerSecurityContext) | fromYaml -}}
{{- $_ := set $spec "initContainers" (list $writer) -}}
{{- end -}}
{{- with $root.Values.imagePullSecrets }}{{ $_ := set $spec "imagePullSecrets" . }}{{ end -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" -}}
{{- with coalesce (get $values $key) (get $all $key) }}{{ $_ := set $spec $key . }}{{ end -}}
{{- end -}}
{{- $spread := list -}}
{{- range coalesce $values.topologySpreadConstraints $all.topologySpreadConstraints $own.topologySpreadConstraints -}}
{{- $spread = append $spread (hasKey . "labelSelector" | ternary . (set (deepCopy .) "labelSelector" (dict "matchLabels" $selector))) -}}
{{- end -}}
{{- with $spread }}{{ $_ := set $spec "topologySpreadConstraints" . }}{{ end -}}

metadata:
  labels:
    {{- merge (dict) $selector $merged.podLabels ($root.Values.commonLabels | default dict) | toYaml | nindent 4 }}
  {{- with merge ($own.annotations | default dict) $merged.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- toYaml $spec | nindent 2 }}
{{- end }}

{{/*
Spread of the replicas of a Deployment over nodes and zones, unless the values have one. A cluster with one node runs all
of them: an absolute constraint would also keep an upgrade waiting for a node. Each revision is spread by itself.
*/}}
{{- define "rlrun.spread" -}}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- {maxSkew: 1, topologyKey: {{ . }}, whenUnsatisfiable: ScheduleAnyway, matchLabelKeys: [pod-template-hash]}
{{- end }}
{{- end }}

{{/* Probes of a container: `startup` and `liveness` ask /healthz. Argument: the name of the port. */}}
{{- define "rlrun.healthProbes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}
