#!/usr/bin/env bash
# Installs what the build needs: Debian packages and the virtual environment .venv.
# Does nothing, quickly, when all is there.
#   setup.sh [lint] [coverage] [fuzz] [data]   also installs what those targets of the Makefile need
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# One at a time; the lock goes with the process.
exec 9<scripts/setup.sh
flock 9

say() { echo "setup: $*" >&2; }

# --- Debian packages -------------------------------------------------------------------------

missing=()
optional=()
need_command() { command -v "$1" >/dev/null || missing+=("${2:-$1}"); }
need_package() {
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ] || missing+=("$1")
}

need_command g++
need_command make
need_command cmake
need_command ninja ninja-build
for package in libgtest-dev libgmock-dev nlohmann-json3-dev libcli11-dev libbenchmark-dev zlib1g-dev; do
  need_package "$package"
done
need_command chromium  # for the tests of reports
need_command python3
# Debian splits these modules off; other Pythons have them.
if [ ! -x .venv/bin/python ] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  missing+=(python3-venv)
fi
lint_packages=()
for goal in "$@"; do
  case "$goal" in
    lint) lint_packages=(ruff==0.17.4 mypy==2.4.1); need_command clang-format; need_command clang-tidy; need_command run-clang-tidy clang-tidy ;;
    coverage) need_command gcovr ;;
    fuzz) need_command clang++-16 clang-16; need_package libclang-rt-16-dev ;;
    data) need_package bible-kjv-text; need_package dataset-fashion-mnist ;;
    *) say "unknown argument: $goal"; exit 2 ;;
  esac
done
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

# --- Python ----------------------------------------------------------------------------------

stamp=.venv/.requirements.sha256
unfinished=.venv/.unfinished
wanted=$(cat requirements*.txt | sha256sum)

install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"; }
install_lint_packages() { [ ${#lint_packages[@]} -eq 0 ] || install "${lint_packages[@]}"; }

if [ -x .venv/bin/python ] && [ ! -e $unfinished ] && [ "$(cat $stamp 2>/dev/null)" = "$wanted" ]
then
  install_lint_packages
  exit 0
fi

say "installing requirements.txt into .venv, a few minutes"
# A package that pip was interrupted in can pass for installed: start afresh.
if [ ! -x .venv/bin/python ] || [ -e $unfinished ]; then
  rm -rf .venv
  mkdir .venv
  touch $unfinished
  python3 -m venv .venv
fi
touch $unfinished
rm -f $stamp
install -r requirements.txt
install --no-deps -r requirements-no-deps.txt
rm -rf .venv/timm
install --no-deps --target .venv/timm -r requirements-timm.txt
.venv/bin/python -c 'import hypothesis, numpy, pytest, safetensors, scikit_build_core, torch'
echo "$wanted" >$stamp
rm $unfinished
install_lint_packages
