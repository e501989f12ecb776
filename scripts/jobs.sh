#!/bin/sh
# How many compilers may run at once: one per core, and 1.5 GB of memory for each. The limits of a
# container or a control group count, too (src/core/cgroup.cpp reads the same files).
groups=${1:-/proc/self/cgroup}  # these for tests
mount=${2:-/sys/fs/cgroup}
memory=${3:-/proc/meminfo}

# limits CONTROLLER V2_FILE V1_FILES: what they say in this process's group and all groups above it,
# a line each.
limits() {
    while IFS=: read -r _ controllers group; do
        case ",$controllers," in
            ,,) root=$mount files=$2 ;;
            *",$1,"*) root=$mount/$1 files=$3 ;;
            *) continue ;;
        esac
        while :; do
            for file in $files; do tr '\n' ' ' <"$root$group/$file"; done
            echo
            [ -n "${group#/}" ] || break
            group=${group%/*}
        done
    done 2>/dev/null <"$groups"
}

cores=$(nproc 2>/dev/null || echo 1)
cores=$(limits cpu cpu.max "cpu.cfs_quota_us cpu.cfs_period_us" | awk -v cores="$cores" '
    $1 + 0 > 0 && $2 + 0 > 0 && $1 / $2 < cores { cores = int($1 / $2) }
    END { print cores < 1 ? 1 : cores }')
kb=$(awk '/^MemAvailable:/ { print $2 }' "$memory" 2>/dev/null)
by_memory=$(limits memory memory.max memory.limit_in_bytes | awk -v kb="${kb:-1e12}" '
    $1 + 0 > 0 && $1 / 1024 < kb { kb = $1 / 1024 }
    END { jobs = int(kb / 1500000); print jobs < 1 ? 1 : jobs }')
[ "$by_memory" -lt "$cores" ] && cores=$by_memory
echo "$cores"
