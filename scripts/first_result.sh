#!/usr/bin/env bash
# Measures the minutes to a first result, each from a fresh clone and with an empty HOME (no compiler cache, no packages
# of pip), and writes docs/results/first_minutes.md. On an idle machine: it takes half an hour and more.
#   first_result.sh [PATH ...]    of python, cpp, cli; all if none is named
# WORK=FOLDER is where the clones are made (a temporary folder by default, which is deleted).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "first_result: $*" >&2; }

# --- The paths: what a new user types, in the clone ------------------------------------------------

path_python() { make demo; }

# As docs/howto/cpp.md has it: the project is tests/consumer.
path_cpp() {
  make library
  cmake --install build/release --prefix out/ddc
  local torch
  torch=$(.venv/bin/python -c 'import torch; print(torch.utils.cmake_prefix_path)')
  cmake -S tests/consumer -B out/consumer -DCMAKE_PREFIX_PATH="$PWD/out/ddc;$torch"
  cmake --build out/consumer
  out/consumer/consumer
}

path_cli() {
  make build
  build/release/cli/ddc audit ln_relu
}

describe() {
  case "$1" in
    python) echo 'Python: `make demo`' ;;
    cpp) echo 'C++: `make library`, installed, and the project of [the page on C++](../howto/cpp.md)' ;;
    cli) echo 'command line: `make build`, and `ddc audit ln_relu` of [the tool](../howto/experiments.md)' ;;
    *) return 1 ;;
  esac
}

# --- Measuring -------------------------------------------------------------------------------------

# first_result.sh --row NAME SECONDS LINE: a row of the table.
row() {
  printf '| %s | %d min %02d s | `%s` |\n' "$(describe "$1")" $(($2 / 60)) $(($2 % 60)) "$3"
}

# first_result.sh --in-clone NAME FOLDER HOME: the commands of a path, in a clone, with nothing of this user's home.
# Other variables stay: they may say where pip finds packages.
in_clone() (
  cd "$2"
  env -u CCACHE_DIR -u MAKEFLAGS -u PYTHONPATH -u VIRTUAL_ENV -u XDG_CACHE_HOME -u XDG_CONFIG_HOME \
    HOME="$3" CCACHE_DISABLE=1 PIP_NO_CACHE_DIR=1 \
    bash -euo pipefail -c "$(declare -f "path_$1"); path_$1"
)

measure() {
  local name=$1 folder=$2 start
  say "$name, in $folder"
  git clone --quiet . "$folder/$name"
  mkdir "$folder/$name.home"
  start=$SECONDS
  if ! in_clone "$name" "$folder/$name" "$folder/$name.home" >"$folder/$name.log" 2>&1; then
    tail -n 20 "$folder/$name.log" >&2
    say "$name failed"
    return 1
  fi
  row "$name" $((SECONDS - start)) "$(grep -v '^$' "$folder/$name.log" | tail -n 1 | tr '|`' '  ' | cut -c1-80)"
}

page() {
  cat <<END
# The first minutes

Written by \`scripts/first_result.sh\`: time to a result after \`git clone\`, with an empty home, no compiler cache and no
cached packages. Debian packages were installed before. $(nproc) cores,
$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1), $(date +%Y-%m-%d), commit $(git rev-parse --short HEAD).

| path | time | last line that it printed |
| --- | ---: | --- |
$1
END
}

case "${1:-}" in
  --row) row "$2" "$3" "$4"; exit ;;
  --in-clone) in_clone "$2" "$3" "$4"; exit ;;
  --page) page "$2"; exit ;;
esac

names=("$@")
[ $# -gt 0 ] || names=(python cpp cli)
for name in "${names[@]}"; do
  describe "$name" >/dev/null || { say "no path '$name'; there are python, cpp and cli"; exit 2; }
done
if [ -n "${WORK:-}" ]; then
  folder=$WORK
  mkdir -p "$folder"
else
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi
rows=
for name in "${names[@]}"; do
  rows+=$(measure "$name" "$folder")$'\n'
done
page "${rows%$'\n'}" >docs/results/first_minutes.md
cat docs/results/first_minutes.md
