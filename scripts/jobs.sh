#!/bin/sh
# How many compilers may run at once: one per core, and 1.5 GB of memory for each.
cores=$(nproc 2>/dev/null || echo 1)
by_memory=$(awk '/^MemAvailable:/ { print int($2 / 1500000) }' /proc/meminfo 2>/dev/null)
[ -n "$by_memory" ] || by_memory=$cores
[ "$by_memory" -ge 1 ] || by_memory=1
[ "$by_memory" -lt "$cores" ] && cores=$by_memory
echo "$cores"
