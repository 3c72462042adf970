#!/usr/bin/env bash
# Builds a wheel for each Python from 3.11 on that is here, and the source distribution, into wheelhouse/. The wheel of
# .venv's Python is the one that `make python` has built; for the others the sources are compiled, and the wheel is
# imported. Pythons are looked for on the PATH and among pyenv's.
#   PYTHONS="3.11 3.12"   these alone
#   ANY_TORCH=1           also where pip has torch with CUDA only (gigabytes); otherwise such a Python is skipped
# `wheelhouse.sh --list` says which Pythons there are, and builds nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "wheelhouse: $*"; }

# Prints the path of a Python that runs and can make environments. The shims of pyenv are there for all of its versions,
# and fail for those that are not active.
find_python() {
  local candidate root=
  ! command -v pyenv >/dev/null || root=$(pyenv root)
  for candidate in "python$1" ${root:+"$root"/versions/*/bin/python"$1"}; do
    if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

# Prints the version of torch that pip would install, without its dependencies: 2.13.0+cpu, say.
torch_for() {
  "$1" -m pip install --quiet --disable-pip-version-check --retries 0 --dry-run --no-deps --ignore-installed \
    --report - -r requirements.txt 2>/dev/null |
    "$1" -c 'import json, sys
print(*(p["metadata"]["version"] for p in json.load(sys.stdin)["install"] if p["metadata"]["name"] == "torch"))' \
    2>/dev/null
}

wanted=${PYTHONS:-3.11 3.12 3.13 3.14}
if [ "${1:-}" = --list ]; then
  for version in $wanted; do
    say "$version: $(find_python "$version" || echo "not here")"
  done
  exit
fi

rm -rf wheelhouse
mkdir wheelhouse
.venv/bin/python -c 'from scikit_build_core.build import build_sdist; build_sdist("wheelhouse")' >/dev/null
own=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
skipped=()
for version in $wanted; do
  if [ "$version" = "$own" ]; then
    cp dist/ddc-*.whl wheelhouse
    continue
  fi
  if ! python=$(find_python "$version"); then
    skipped+=("$version: no such Python here")
    continue
  fi
  torch=$(torch_for "$python") || torch=
  if [ -z "$torch" ]; then
    skipped+=("$version: pip has no torch for it")
    continue
  fi
  if [[ "$torch" != *+cpu && -z "${ANY_TORCH:-}" ]]; then
    skipped+=("$version: pip has torch $torch with CUDA only; ANY_TORCH=1 takes it")
    continue
  fi
  environment=build/wheelhouse/$version
  [ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
  pip=("$environment/bin/python" -m pip --quiet --disable-pip-version-check)
  "${pip[@]}" install -r requirements.txt
  "${pip[@]}" wheel --no-build-isolation --no-deps -w wheelhouse -C "build-dir=$environment/build" \
    wheelhouse/ddc-*.tar.gz
  "${pip[@]}" install --no-index --find-links wheelhouse --no-deps --force-reinstall ddc
  (cd "$environment" && bin/python -c 'import ddc; print("wheelhouse: imported ddc", ddc.__version__)')
done
ls wheelhouse
for each in ${skipped[@]+"${skipped[@]}"}; do say "skipped $each"; done
