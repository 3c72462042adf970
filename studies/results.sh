#!/usr/bin/env bash
# Runs experiments in full, or what is left of them, and stores their results in docs/results.
#   results.sh [--evaluate] [EXPERIMENT ...]   default: all of them; --evaluate: run nothing, store what is finished
# Behind each result, docs/results/runs/NAME.tar.xz has the finished runs without their weights. They are not repeated.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ddc=build/release/cli/ddc
out=out/experiments
runs=docs/results/runs

flags=()
if [ "${1:-}" = --evaluate ]; then
  flags=(--evaluate)
  shift
fi
if [ $# -eq 0 ]; then
  # The names are the first words of the indented lines.
  set -- $($ddc list experiments | awk '/^ / {print $1}')
fi
mkdir -p "$out" "$runs"
for name in "$@"; do
  archive="$runs/$name.tar.xz"
  [ ! -e "$archive" ] || tar -C "$out" --skip-old-files -xf "$archive"
  $ddc experiment "$name" "${flags[@]}"
  cp "$out/$name/result.json" "docs/results/$name.json"
  # The same bytes for the same runs; into place only when it is whole.
  (cd "$out" && find "$name" -name summary.json -printf "%h/config.json\n%h/metrics.jsonl\n%p\n" | sort) |
    tar -C "$out" --mtime=@0 --owner=0 --group=0 --numeric-owner -cJf "$archive.new" -T -
  mv "$archive.new" "$archive"
done
$ddc report docs/results --markdown
