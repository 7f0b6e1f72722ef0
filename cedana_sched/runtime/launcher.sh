#!/bin/sh
# containerd's runtime handler `cedana` (options.BinaryName): runc, but `create` of a container whose pod has a plan
# continues it from a snapshot; see cedana_sched/runtime/handler.py. The installation fills in the places.
here=@HERE@
runc=@RUNC@
state=@STATE@
@EXPORTS@

python() {
    CEDANA_RUNC=$runc CEDANA_STATE=$state CEDANA_FINISHED=$here/bin/finished \
        PATH=$here/criu/bin:$PATH:/usr/sbin:/sbin @PYTHON@ -I -S -B -c "
import sys
sys.path.insert(0, '$here/handler')
$code" "$@"
}

if [ "$1" = cedana-check ]; then # said by the installation: can it run here?
    code='from cedana_sched.runtime import planned'
    python
    exit
fi

command='' root=/run/runc bundle='' previous=''
for word; do
    case $previous in
        --root) root=$word ;;
        --bundle | -b) bundle=$word ;;
    esac
    [ -n "$command" ] || case $word in
        create | start | state | kill | delete | exec | pause | resume | update | ps | events | list | run | checkpoint \
            | restore | features | spec) command=$word ;;
    esac
    previous=$word
done

case $command in
    start) # what was continued runs already, and from now on counts as continued; the last word is its id
        if [ -e "$root/$previous/cedana-restored" ]; then
            read -r result <"$root/$previous/cedana-restored"
            if [ -e "$result.begun" ]; then mv "$result.begun" "$result" || exit 1; fi
            exit 0
        fi
        exec "$runc" "$@"
        ;;
    create) ;;
    delete) # a restore that was killed leaves the root mounted here, and runc would delete all that is in it
        if [ -e "$root/$previous/criu-root" ]; then umount "$root/$previous/criu-root" 2>/dev/null; fi
        exec "$runc" "$@"
        ;;
    *) exec "$runc" "$@" ;;
esac

annotation() { sed -n "s/.*\"io\\.kubernetes\\.cri\\.$1\": *\"\\([^\"]*\\)\".*/\\1/p" "$bundle/config.json" | head -n 1; }
planned=''
for plan in "$state"/pods/*/plan.json; do
    if [ -e "$plan" ]; then planned=1; fi
    break
done
[ -n "$planned" ] || exec "$runc" "$@"
uid=$(annotation sandbox-uid)
pod=$state/pods/$uid
if [ -n "$uid" ] && ! [ -e "$pod/plan.json" ]; then exec "$runc" "$@"; fi

code='from cedana_sched.runtime.handler import main
sys.exit(main())'
python "$@"
status=$?
case $status in
    0) exit 0 ;;
    100) exec "$runc" "$@" ;;
    101) exit 1 ;;
esac

# The handler has crashed. Unless the plan forbids it, the container starts from its beginning, and that is told.
name=$(annotation container-name)
why="the runtime handler ended with status $status"
if [ -z "$uid" ] || ! [ -e "$pod/plan.json" ]; then exec "$runc" "$@"; fi
if ! [ -e "$pod/results/$name.json" ]; then
    cold=true
    if grep -q '"fallback": *"fail"' "$pod/plan.json"; then cold=false; fi
    mkdir -p "$pod/results"
    printf '{"version": 1, "restored": false, "cold": %s, "why": "%s"}' "$cold" "$why" >"$pod/results/$name.json.new"
    mv "$pod/results/$name.json.new" "$pod/results/$name.json"
fi
if grep -q '"fallback": *"fail"' "$pod/plan.json"; then
    for word; do
        if [ "$previous" = --log ]; then printf '{"level": "error", "msg": "cedana: %s"}\n' "$why" >>"$word"; fi
        previous=$word
    done
    exit 1
fi
umount "$root/$previous/criu-root" 2>/dev/null
"$runc" --root "$root" delete --force "$previous" >/dev/null 2>&1
exec "$runc" "$@"
