{{/* What objects are called. */}}
{{- define "cedana.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "cedana.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "cedana.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "cedana.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of every object; (list . component), component may be empty. */}}
{{- define "cedana.labels" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: cedana-sched
{{ include "cedana.selector" . }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "cedana.selector" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
app.kubernetes.io/name: {{ include "cedana.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- with $component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* An image; (list . "control"). */}}
{{- define "cedana.image" -}}
{{- $root := index . 0 -}}
{{- printf "%s/cedana-sched-%s:%s" $root.Values.image.registry (index . 1) (default $root.Chart.AppVersion $root.Values.image.tag) -}}
{{- end -}}

{{/* Of what one component reads: what it does not read does not replace its pods. */}}
{{- define "cedana.configurationChecksum" -}}
{{- $root := index . 0 -}}
{{- $data := (include (print $root.Template.BasePath "/configuration.yaml") $root | fromYaml).data -}}
{{- get $data (printf "%s.json" (index . 1)) | sha256sum -}}
{{- end -}}

{{/* The bucket, as S3Location reads it. */}}
{{- define "cedana.bucket" -}}
{{- $s3 := .Values.storage.s3 -}}
{{- $location := dict "bucket" $s3.bucket "prefix" $s3.prefix "region" $s3.region "allowHttp" $s3.allowHttp -}}
{{- with $s3.endpoint }}{{ $_ := set $location "endpoint" . }}{{ end -}}
{{- $location | toJson -}}
{{- end -}}

{{/* Of whom agents get credentials of one namespace at a time: name of the Service, its Secret and its ConfigMap; empty: they have the keys of the whole bucket. */}}
{{- define "cedana.credentials" -}}
{{- with .Values.storage.s3 -}}
{{- if and .bucket .scopedCredentials.enabled -}}{{ include "cedana.fullname" $ }}-credentials{{- end -}}
{{- end -}}
{{- end -}}

{{/* The ConfigMap that says which node collects which namespace of the bucket; empty: each agent collects all. */}}
{{- define "cedana.collectionTurns" -}}
{{- if include "cedana.credentials" . }}{{ include "cedana.fullname" . }}-collections{{ end -}}
{{- end -}}

{{/* Where agents find their token for it, and who signs its certificate. */}}
{{- define "cedana.credentialsFolder" -}}/etc/cedana-sched-credentials{{- end -}}

{{/* The agents' store, as StorageConfig reads it; S3 keys, where agents have some, come from the environment. */}}
{{- define "cedana.storage" -}}
{{- $s3 := .Values.storage.s3 -}}
{{- $storage := dict -}}
{{- if $s3.bucket -}}
{{- $location := include "cedana.bucket" . | fromJson -}}
{{- with (include "cedana.credentials" .) -}}
{{- $folder := include "cedana.credentialsFolder" $ -}}
{{- $url := printf "https://%s.%s.svc/credentials" . $.Release.Namespace -}}
{{- $_ := set $location "credentials" (dict "url" $url "tokenFile" (printf "%s/token" $folder) "authorities" (printf "%s/ca.crt" $folder)) -}}
{{- end -}}
{{- $_ := set $storage "s3" $location -}}
{{- else -}}
{{- $_ := set $storage "path" .Values.storage.posix.path -}}
{{- end -}}
{{- with .Values.storage.sealing -}}
{{- if .enabled -}}
{{- $_ := set $storage "keyFile" (include "cedana.keyFile" $) -}}
{{- if .acceptUnsealed }}{{ $_ := set $storage "acceptUnsealed" true }}{{ end -}}
{{- if .writeUnsealed }}{{ $_ := set $storage "writeUnsealed" true }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $storage | toJson -}}
{{- end -}}

{{/* Where agents find the keys that seal snapshots. */}}
{{- define "cedana.keyFile" -}}/etc/cedana-sched-keys/keys{{- end -}}

{{/* The Secret with these keys; empty: nothing is sealed. */}}
{{- define "cedana.sealingSecret" -}}
{{- with .Values.storage.sealing -}}
{{- if .enabled -}}{{ default (printf "%s-sealing" (include "cedana.fullname" $)) .existingSecret }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The same, where the coordinator makes it: no part of the release, which would put another key in its place. */}}
{{- define "cedana.ownSealingSecret" -}}
{{- if not .Values.storage.sealing.existingSecret -}}{{ include "cedana.sealingSecret" . }}{{- end -}}
{{- end -}}

{{/* The Secret with the store's keys; empty: none. */}}
{{- define "cedana.storageSecret" -}}
{{- $s3 := .Values.storage.s3 -}}
{{- if $s3.bucket -}}
{{- if $s3.existingSecret -}}{{ $s3.existingSecret }}
{{- else if $s3.accessKey -}}{{ include "cedana.fullname" . }}-storage
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cedana.storageEnvironment" -}}
{{- with (include "cedana.storageSecret" .) }}
{{- $keys := dict "accessKey" "accessKey" "secretKey" "secretKey" }}
{{- if $.Values.storage.s3.existingSecret }}{{ $keys = $.Values.storage.s3.secretKeys }}{{ end }}
- name: AWS_ACCESS_KEY_ID
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: {{ $keys.accessKey }}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: {{ $keys.secretKey }}}
{{- end }}
{{- end -}}

{{/* Namespaces in which no component acts, and that our webhooks never see. */}}
{{- define "cedana.excludedNamespaces" -}}
{{- concat (list .Release.Namespace "kube-system" "kube-public" "kube-node-lease" "kueue-system") .Values.excludedNamespaces | uniq | toJson -}}
{{- end -}}

{{/* What Pod Security calls restricted. */}}
{{- define "cedana.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "cedana.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Two replicas of a component on two nodes; (list . component). */}}
{{- define "cedana.apart" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "cedana.selector" . | nindent 12 }}
{{- end -}}

{{/* Replicas of one revision on several nodes and zones: those of the revision that is replaced do not count, or the
two new ones could end on one node once the old ones are gone; (list . component). */}}
{{- define "cedana.spread" -}}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "cedana.selector" $ | nindent 6 }}
  matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end -}}

{{/* Fields of every pod of ours; (list . values of the component). */}}
{{- define "cedana.podFields" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
nodeSelector: {{- merge (dict "kubernetes.io/os" "linux") $values.nodeSelector | toYaml | nindent 2 }}
{{- end -}}

{{/* What an agent gets: a dump that could not be moved out of its container takes its memory there. */}}
{{- define "cedana.agentResources" -}}
{{- $memory := add (int64 .Values.agent.dumps.memoryBytes) 1073741824 | toString -}}
{{- mergeOverwrite (dict "limits" (dict "memory" $memory)) (deepCopy .Values.agent.resources) | toYaml -}}
{{- end -}}

{{/* Probes and the port that answers them. */}}
{{- define "cedana.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: operations}
  periodSeconds: 1
  failureThreshold: 120
readinessProbe:
  httpGet: {path: /readyz, port: operations}
  periodSeconds: 2
livenessProbe:
  httpGet: {path: /healthz, port: operations}
  periodSeconds: 10
  failureThreshold: 6
{{- end -}}

{{/*
Annotations of an object of one of our own kinds. Helm refuses objects of kinds that do not exist yet, so the first
installation writes them afterwards, as a hook; every later one finds the kinds and takes the objects over.
*/}}
{{- define "cedana.ownKind" -}}
meta.helm.sh/release-name: {{ .Release.Name }}
meta.helm.sh/release-namespace: {{ .Release.Namespace }}
{{- if not (.Capabilities.APIVersions.Has "sched.cedana.ai/v1alpha1/CheckpointPolicy") }}
helm.sh/hook: post-install,post-upgrade
helm.sh/hook-delete-policy: before-hook-creation
{{- end }}
{{- end -}}

{{/* What is there only while the release is uninstalled; the weight says in which order. */}}
{{- define "cedana.uninstallHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* Where Volcano reaches our extender. */}}
{{- define "cedana.volcanoExtender" -}}
{{- printf "http://%s-volcano-extender.%s.svc:%d" (include "cedana.fullname" .) .Release.Namespace (int .Values.volcano.extender.port) -}}
{{- end -}}

{{/* Users whose evictions of single pods are held. */}}
{{- define "cedana.schedulerUsers" -}}
{{- $users := list -}}
{{- if .Values.volcano.enabled }}{{ $users = concat $users .Values.volcano.users }}{{ end -}}
{{- if .Values.kubernetes.enabled }}{{ $users = concat $users .Values.kubernetes.schedulerUsers }}{{ end -}}
{{- toJson $users -}}
{{- end }}

{{/* Which pods another adapter is responsible for. */}}
{{- define "cedana.kubernetesSettings" -}}
{{- $schedulers := list -}}
{{- if .Values.volcano.enabled }}{{ $schedulers = append $schedulers "volcano" }}{{ end -}}
{{- $labels := list -}}
{{- if .Values.kueue.enabled }}{{ $labels = append $labels "kueue.x-k8s.io/podset" }}{{ end -}}
{{- if .Values.armada.enabled }}{{ $labels = append $labels "armada_job_id" }}{{ end -}}
{{- $settings := dict "otherSchedulers" $schedulers "otherLabels" $labels "podSelectors" .Values.kubernetes.podSelectors -}}
{{- if .Values.kueue.enabled }}{{ $_ := set $settings "otherJobLabels" (list "kueue.x-k8s.io/queue-name") }}{{ end -}}
{{- toJson $settings -}}
{{- end }}

{{/* Kinds beside Job whose objects Kueue stops, by API group: resources and versions of each group. */}}
{{- define "cedana.kueueKinds" -}}
{{- $groups := dict -}}
{{- range .Values.kueue.kinds -}}
{{- $group := regexReplaceAll "/.*$" .apiVersion "" -}}
{{- $one := get $groups $group | default (dict "resources" list "versions" list) -}}
{{- $resources := append $one.resources .resource | uniq -}}
{{- $versions := append $one.versions (regexReplaceAll "^.*/" .apiVersion "") | uniq -}}
{{- $_ := set $groups $group (dict "resources" $resources "versions" $versions) -}}
{{- end -}}
{{- toJson $groups -}}
{{- end }}

{{/* Where the authorities are mounted that sign the API server's certificate. */}}
{{- define "cedana.clientAuthorities" -}}
/etc/cedana-sched-clients
{{- end -}}

{{/* Where the secrets are mounted that the coordinator shows to Armada. */}}
{{- define "cedana.armadaFolder" -}}
/etc/cedana-sched-armada
{{- end -}}

{{/* Armada and who we are there, as the adapter reads it. */}}
{{- define "cedana.armadaSettings" -}}
{{- $values := .Values.armada -}}
{{- $folder := include "cedana.armadaFolder" . -}}
{{- $settings := pick $values "url" "queues" "holdSeconds" "settleSeconds" "limits" -}}
{{- with $values.onlyQueues }}{{ $_ := set $settings "onlyQueues" . }}{{ end -}}
{{- if $values.tls.enabled -}}
{{- $tls := dict -}}
{{- with $values.tls.serverName }}{{ $_ := set $tls "serverName" . }}{{ end -}}
{{- if $values.tls.existingSecret -}}
{{- range $which, $key := $values.tls.secretKeys }}{{ if $key }}{{ $_ := set $tls $which (printf "%s/tls/%s" $folder $key) }}{{ end }}{{ end -}}
{{- end -}}
{{- $_ := set $settings "tls" $tls -}}
{{- end -}}
{{- $secret := printf "%s/auth/%s" $folder $values.auth.secretKey -}}
{{- if eq $values.auth.method "basic" -}}
{{- $_ := set $settings "auth" (dict "basic" (merge (dict "passwordFile" $secret) $values.auth.basic)) -}}
{{- else if eq $values.auth.method "token" -}}
{{- $_ := set $settings "auth" (dict "token" (dict "file" $secret)) -}}
{{- else if eq $values.auth.method "oidc" -}}
{{- $_ := set $settings "auth" (dict "oidc" (merge (dict "clientSecretFile" $secret) $values.auth.oidc)) -}}
{{- end -}}
{{- toJson $settings -}}
{{- end -}}

{{/* Secrets that the adapters of a coordinator need: mounts, and their volumes. */}}
{{- define "cedana.adapterMounts" -}}
{{- if .Values.armada.enabled -}}
{{- $folder := include "cedana.armadaFolder" . -}}
{{- if and .Values.armada.tls.enabled .Values.armada.tls.existingSecret }}
- {name: armada-tls, mountPath: {{ $folder }}/tls, readOnly: true}
{{- end }}
{{- if ne .Values.armada.auth.method "none" }}
- {name: armada-auth, mountPath: {{ $folder }}/auth, readOnly: true}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "cedana.adapterVolumes" -}}
{{- if .Values.armada.enabled -}}
{{- if and .Values.armada.tls.enabled .Values.armada.tls.existingSecret }}
- name: armada-tls
  secret: {secretName: {{ .Values.armada.tls.existingSecret }}}
{{- end }}
{{- if ne .Values.armada.auth.method "none" }}
- name: armada-auth
  secret:
    secretName: {{ .Values.armada.auth.existingSecret }}
    items: [{key: {{ .Values.armada.auth.secretKey }}, path: {{ .Values.armada.auth.secretKey }}}]
{{- end }}
{{- end -}}
{{- end }}

{{/* What a policy compares of the metadata of an object, given as an expression, and of the one before. */}}
{{- define "cedana.metadataVariables" -}}
- name: changed
  expression: {{ . | toJson }}
- name: labelsBefore
  expression: "has(oldObject.metadata.labels) ? oldObject.metadata.labels : {}"
- name: labelsAfter
  expression: "has(variables.changed.metadata.labels) ? variables.changed.metadata.labels : {}"
- name: annotationsBefore
  expression: "has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}"
- name: annotationsAfter
  expression: "has(variables.changed.metadata.annotations) ? variables.changed.metadata.annotations : {}"
- name: ownersBefore
  expression: "has(oldObject.metadata.ownerReferences) ? oldObject.metadata.ownerReferences : []"
- name: ownersAfter
  expression: "has(variables.changed.metadata.ownerReferences) ? variables.changed.metadata.ownerReferences : []"
- name: finalizersBefore
  expression: "has(oldObject.metadata.finalizers) ? oldObject.metadata.finalizers : []"
- name: finalizersAfter
  expression: "has(variables.changed.metadata.finalizers) ? variables.changed.metadata.finalizers : []"
{{- end -}}

{{/* Whether a label or an annotation, called key, may be written by ours, or by a webhook that changes what ours write. */}}
{{- define "cedana.mayBeWritten" -}}
{{- $parts := list -}}
{{- range prepend .Values.narrowedRights.keysOfOthers "sched.cedana.ai/" -}}
{{- $parts = append $parts (printf "key.startsWith('%s')" .) -}}
{{- end -}}
{{- join " || " $parts -}}
{{- end -}}

{{/* Whether all metadata but our own labels and annotations is as before. */}}
{{- define "cedana.othersAreUnchanged" -}}
{{- $may := include "cedana.mayBeWritten" . -}}
{{- range $kind := list "labels" "annotations" -}}
variables.{{ $kind }}After.all(key, {{ $may }} || (key in variables.{{ $kind }}Before && variables.{{ $kind }}Before[key] == variables.{{ $kind }}After[key])) && variables.{{ $kind }}Before.all(key, {{ $may }} || key in variables.{{ $kind }}After) && {{ end -}}
variables.ownersAfter == variables.ownersBefore && variables.finalizersAfter == variables.finalizersBefore
{{- end -}}

{{/* Whether a map is as before but for some fields: how it is now, how it was, and the fields. */}}
{{- define "cedana.restIsUnchanged" -}}
{{- $now := index . 0 -}}
{{- $was := index . 1 -}}
{{- $may := printf "field in [%s]" (rest (rest .) | join "', '" | squote) -}}
{{ $now }}.all(field, {{ $may }} || (field in {{ $was }} && {{ $was }}[field] == {{ $now }}[field])) && {{ $was }}.all(field, {{ $may }} || field in {{ $now }})
{{- end -}}

{{/* Whether an Event is told in our name, and is another one before only in how often, and when last, it happened. */}}
{{- define "cedana.isOwnEvent" -}}
has(object.source.component) && object.source.component == 'cedana-sched' && object.reportingComponent == 'cedana-sched' && (request.operation == 'CREATE' || ({{ include "cedana.restIsUnchanged" (list "object" "oldObject" "apiVersion" "kind" "metadata" "count" "lastTimestamp") }}))
{{- end -}}
