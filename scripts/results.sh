#!/usr/bin/env bash
# Runs experiments in full, or what is left of them, and stores their results in docs/results.
#   results.sh [EXPERIMENT ...]   default: all of them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ddc=build/release/cli/ddc

if [ $# -eq 0 ]; then
  # The names are the first words of the indented lines.
  set -- $($ddc list experiments | awk '/^ / {print $1}')
fi
mkdir -p docs/results
for name in "$@"; do
  $ddc experiment "$name"
  cp "out/experiments/$name/result.json" "docs/results/$name.json"
done
$ddc report docs/results --markdown
