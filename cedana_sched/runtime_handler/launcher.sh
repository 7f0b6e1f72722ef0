#!/bin/sh
# containerd's runtime handler `cedana` (options.BinaryName): runc, but `create` of a container whose pod has a plan
# restores it from a snapshot; see cedana_sched/runtime_handler/handler.py. The installation substitutes the placeholders.
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

if [ "$1" = cedana-check ]; then # by the installation: can the handler run here?
    code='from cedana_sched.runtime_handler import planned_create'
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

id=$previous # the last argument

remove() { # the container, perhaps a restored one, with its processes
    umount "$root/$id/criu-root" 2>/dev/null
    "$runc" --root "$root" delete --force "$id" >/dev/null 2>&1
}

thaw() { # the restored container's group; missing in a marker of an older version, which froze none
    if [ -z "$group" ]; then
        return 0
    elif [ -e "$group/freezer.state" ]; then
        echo THAWED >"$group/freezer.state"
    else
        echo 0 >"$group/cgroup.freeze"
    fi
}

end_frozen() { # no process executes another instruction
    [ -n "$group" ] || return 0
    for process in $(find "$group" -name cgroup.procs -exec cat {} + 2>/dev/null); do kill -9 "$process" 2>/dev/null; done
    thaw
}

refuse() { # fail, with the reason in runc's log: the kubelet retries, if the pod's restartPolicy permits it
    why=$1
    shift
    previous=''
    for word; do
        if [ "$previous" = --log ]; then printf '{"level": "error", "msg": "cedana: %s"}\n' "$why" >>"$word"; fi
        previous=$word
    done
    exit 1
}

case $command in
    start) # a restored container is frozen; from now on it runs, and counts as restored
        if [ -e "$root/$id/cedana-restored" ]; then
            result='' group=''
            { read -r result && read -r group; } <"$root/$id/cedana-restored"
            if grep -q '"decision": *"\(fail\|forgo\)"' "${result%/results/*}/plan.json" 2>/dev/null; then
                end_frozen
                remove
                rm -f "$result.begun"
                refuse 'not continued from its snapshot: it was decided meanwhile that its pod does not start' "$@"
            fi
            thaw || exit 1
            if [ -e "$result.begun" ]; then mv "$result.begun" "$result" || exit 1; fi
            exit 0
        fi
        exec "$runc" "$@"
        ;;
    create) ;;
    delete) # a killed restore leaves the root mounted here, and runc would delete every file in it
        if [ -e "$root/$id/criu-root" ]; then umount "$root/$id/criu-root" 2>/dev/null; fi
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

code='from cedana_sched.runtime_handler.handler import main
sys.exit(main())'
for try in 1 2 3; do # the cause of a crash, such as a shortage of memory, may be transient
    [ "$try" = 1 ] || sleep 1
    python "$@"
    status=$?
    case $status in
        0) exit 0 ;;
        100) exec "$runc" "$@" ;;
        101) exit 1 ;;
    esac
done

# The handler crashes. The container starts cold, and that is reported, unless the plan or a decision forbids it; but
# never beside a container of the pod that has been restored, or may have been.
name=$(annotation container-name)
why="the runtime handler ended with status $status"
if [ -z "$uid" ] || ! [ -e "$pod/plan.json" ]; then exec "$runc" "$@"; fi
if [ "$(annotation container-type)" = sandbox ] || [ "$name" = cedana-restore ]; then exec "$runc" "$@"; fi
says() { grep -q "\"$1\": *$2" "$3" 2>/dev/null; }
if says sandbox '"[^"]' "$pod/plan.json" && ! says sandbox "\"$(annotation sandbox-id)\"" "$pod/plan.json"; then
    refuse "$why" "$@" # no decision for this sandbox yet
fi
if says decision '"\(fail\|forgo\)"' "$pod/plan.json"; then refuse "$why" "$@"; fi
for file in "$pod"/results/*; do
    case $file in
        "$pod/results/$name.json") ;; # it had its attempt
        *.json) if says restored true "$file"; then refuse "$why" "$@"; fi ;;
        *.begun | *.lost)
            [ ! -e "${file%.*}" ] || continue
            remove
            refuse "$why" "$@"
            ;;
    esac
done
if says decision '"cold"' "$pod/plan.json"; then exec "$runc" "$@"; fi
cold=true
if says fallback '"fail"' "$pod/plan.json"; then cold=false; fi
if ! [ -e "$pod/results/$name.json" ]; then
    mkdir -p "$pod/results"
    printf '{"version": 1, "restored": false, "cold": %s, "why": "%s"}' "$cold" "$why" >"$pod/results/$name.json.new"
    mv "$pod/results/$name.json.new" "$pod/results/$name.json"
fi
[ "$cold" = true ] || refuse "$why" "$@"
remove
exec "$runc" "$@"
