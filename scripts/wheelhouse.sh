#!/usr/bin/env bash
# Builds a wheel for each Python from 3.11 on that is on the PATH, and the source distribution, into wheelhouse/. That of
# .venv's Python is the one that `make python` has built; for the others the sources are compiled.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rm -rf wheelhouse
mkdir wheelhouse
.venv/bin/python -c 'from scikit_build_core.build import build_sdist; build_sdist("wheelhouse")' >/dev/null
cp dist/ddc-*.whl wheelhouse
own=$(.venv/bin/python -c 'import sys; print(sys.version_info.minor)')
for minor in 11 12 13 14; do
  python=python3.$minor
  [ "$minor" != "$own" ] && "$python" -c 'import ensurepip, venv' 2>/dev/null || continue
  environment=build/wheelhouse/3.$minor
  [ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
  pip=("$environment/bin/python" -m pip --quiet --disable-pip-version-check)
  "${pip[@]}" install -r requirements.txt
  "${pip[@]}" wheel --no-build-isolation --no-deps -w wheelhouse -C "build-dir=$environment/build" wheelhouse/ddc-*.tar.gz
done
ls wheelhouse
