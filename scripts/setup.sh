#!/usr/bin/env bash
# Installs what a goal needs, and nothing else: Debian packages, and Python packages into .venv. Does nothing, quickly,
# when all is there.
#   setup.sh [GOAL ...]
#     build    the library and the Python package (always)     test   their tests
#     study    experiments, reports, the command line          data   texts and images that they read
#     pages    looking at pages in headless Chromium           docs   the site of the documentation
#     lint, coverage, fuzz, bench                              what these targets of make run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# One at a time; the lock goes with the process.
exec 9<scripts/setup.sh
flock 9

say() { echo "setup: $*" >&2; }

# --- What is wanted ----------------------------------------------------------------------------

missing=()
requirements=(requirements.txt)
texts=
need_command() { command -v "$1" >/dev/null || missing+=("${2:-$1}"); }
need_package() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
}

need_command g++
need_command make
need_command cmake
need_command ninja ninja-build
need_command python3
# Debian splits these modules off; other Pythons have them.
if [ ! -x .venv/bin/python ] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  missing+=(python3-venv)
fi
# So are its headers.
python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
  missing+=(python3-dev)
for goal in "$@"; do
  case "$goal" in
    build) ;;
    test) requirements+=(requirements-test.txt); need_package libgtest-dev libgmock-dev zlib1g-dev ;;
    study) requirements+=(requirements-study.txt); need_package libcli11-dev zlib1g-dev ;;
    pages) requirements+=(requirements-pages.txt); need_command chromium ;;
    docs) requirements+=(requirements-docs.txt) ;;
    lint)
      requirements+=(requirements-test.txt requirements-lint.txt)
      need_command clang-format ;;
    coverage) need_command gcovr ;;
    fuzz) need_command clang++-16 clang-16; need_package libclang-rt-16-dev ;;
    bench) requirements+=(requirements-test.txt); need_package libbenchmark-dev ;;
    data) need_package bible-kjv-text dataset-fashion-mnist; texts=out/data/king_james.txt ;;
    *) say "unknown goal: $goal"; exit 2 ;;
  esac
done

# --- Debian packages -----------------------------------------------------------------------------

optional=()
command -v ccache >/dev/null || optional=(ccache)

if [ ${#missing[@]} -gt 0 ] || [ ${#optional[@]} -gt 0 ]; then
  as_root=()
  may_install=no
  if command -v apt-get >/dev/null; then
    if [ "$(id -u)" -eq 0 ]; then
      may_install=yes
    elif sudo -n true 2>/dev/null; then
      may_install=yes
      as_root=(sudo -n)
    fi
  fi
  apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" \
      >/dev/null
  }
  if [ $may_install = yes ]; then
    say "installing ${missing[*]} ${optional[*]}"
    if ! { apt update && apt install -y --no-install-recommends "${missing[@]}" "${optional[@]}"; }
    then
      [ ${#missing[@]} -eq 0 ] || { say "apt-get failed; install: ${missing[*]}"; exit 1; }
    fi
  elif [ ${#missing[@]} -gt 0 ]; then
    say "missing, and no right to install them; run: apt-get install ${missing[*]}"
    exit 1
  fi
fi

# --- Python packages -----------------------------------------------------------------------------

# A package that pip was interrupted in can pass for installed: start afresh.
unfinished=.venv/.unfinished
if [ ! -x .venv/bin/python ] || [ -e $unfinished ]; then
  rm -rf .venv
  mkdir .venv
  touch $unfinished
  python3 -m venv .venv
  rm $unfinished
fi

install() { .venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --retries 1 "$@"; }

for file in "${requirements[@]}"; do
  stamp=.venv/.$file.sha256
  parts=("$file")
  [ "$file" != requirements-test.txt ] || parts+=(requirements-test-no-deps.txt requirements-test-timm.txt)
  wanted=$(cat "${parts[@]}" | sha256sum)
  [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || continue
  say "installing $file into .venv"
  touch $unfinished
  rm -f "$stamp"
  install -r "$file"
  if [ "$file" = requirements-test.txt ]; then
    install --no-deps -r requirements-test-no-deps.txt
    rm -rf .venv/timm
    install --no-deps --target .venv/timm -r requirements-test-timm.txt
  fi
  echo "$wanted" >"$stamp"
  rm $unfinished
done

# --- Texts -------------------------------------------------------------------------------------

if [ -n "$texts" ] && [ ! -e "$texts" ]; then
  say "unpacking $texts"
  .venv/bin/python studies/king_james.py "$texts.new"
  mv "$texts.new" "$texts"
fi
