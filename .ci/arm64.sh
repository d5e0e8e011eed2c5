#!/usr/bin/env bash
# Plays tests on arm64 Linux, whose processor qemu emulates: ./run prove arm64 [pytest's arguments]
#
# It needs root, Debian's packages debootstrap and qemu-user-static, and half an hour once: a Debian, the packages of
# requirements.lock but those that no test needs, and the kernels, compiled some ten times slower than on a
# processor. They stay in ARM64_ROOT, 3 GB. The processor is a Neoverse N1, as Linux describes it in /proc/cpuinfo.
# Without arguments it plays each promise once, as `./run test` does: two hours. qemu keeps memory of each store
# that a process has opened, so no process plays more than a few files. It ignores madvise, and makes up when a
# process began: three tests ask for these. Under emulation a child that a test kills gets more time.
# `./run prove arm64 --shell COMMAND` runs something else there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=${ARM64_ROOT:-/var/tmp/timerstore-arm64}
debian=http://deb.debian.org/debian
features="fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"

# What is mounted below is seen by this script alone, and gone when it ends.
[ -n "${MOUNTED_APART:-}" ] || exec unshare --mount env MOUNTED_APART=1 bash "$0" "$@"

# Linux starts qemu for each program of arm64, also in a chroot, which needs no copy of it (F).
programs=/proc/sys/fs/binfmt_misc
[ -e $programs/register ] || mount -t binfmt_misc none $programs
if [ ! -e $programs/qemu-aarch64 ]; then
  head='\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  printf '%s' ":qemu-aarch64:M::$head:$mask:$(command -v qemu-aarch64-static):F" >$programs/register
fi

there() { chroot "$root" env -i PATH=/venv/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/venv LANG=C.UTF-8 "$@"; }

# pip of this machine fetches the wheels of the other one, which takes seconds.
install() {
  local versions
  versions=$(printf -- '--platform manylinux_2_%s_aarch64 ' 17 24 26 27 28 31 34 35)
  grep -vE '^(pyspark|ruff|mypy==|mkdocs|griffe|pymdown)' requirements.lock >"$root/lock"
  # shellcheck disable=SC2086
  .venv/bin/python -m pip install --quiet --no-deps --no-compile --only-binary=:all: --upgrade $versions --python-version 3.11 \
    --target "$root/venv/lib/python3.11/site-packages" -r "$root/lock"
  grep '^pyspark==' requirements.lock >"$root/lock"  # there is no wheel of it
  .venv/bin/python -m pip install --quiet --no-deps --no-compile --upgrade \
    --target "$root/venv/lib/python3.11/site-packages" -r "$root/lock"
}

if [ ! -e "$root/made" ]; then
  debootstrap --arch=arm64 --foreign --variant=minbase --include=python3-venv,gcc,libc6-dev,binutils,procps,tzdata \
    bookworm "$root" $debian
  there /debootstrap/debootstrap --second-stage
  there python3 -m venv --without-pip /venv
  mkdir "$root/src" "$root/kernels"
  touch "$root/made"
fi
mount -t proc none "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
printf 'processor\t: 0\nFeatures\t: %s\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n' "$features" >"$root/cpuinfo"
mount --bind "$root/cpuinfo" "$root/proc/cpuinfo"
echo "127.0.0.1 localhost $(uname -n)" >"$root/etc/hosts"
wanted=$(cat requirements.lock .ci/arm64.sh | cksum)
if [ "$(cat "$root/installed" 2>/dev/null)" != "$wanted" ]; then
  install
  echo "$wanted" >"$root/installed"
fi

# A copy of the sources, so that nobody changes them meanwhile; kernels that are compiled outlive it.
rm -rf "${root:?}/src"
mkdir -p "$root/src/timerstore/kernels"
git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$root/src"
mount --bind "$root/kernels" "$root/src/timerstore/kernels"
there bash -c 'cd /src && python -P -c "
from setuptools import build_meta
build_meta.build_editable(\"/venv\")" >/dev/null 2>&1 && cd /venv/lib/python3.11/site-packages && rm -rf timerstore-*.dist-info && python -m zipfile -e /venv/timerstore-*.whl . && rm /venv/timerstore-*.whl'
printf '#!/venv/bin/python\nfrom timerstore.cli import main\nmain()\n' >"$root/venv/bin/timerstore"
chmod +x "$root/venv/bin/timerstore"

if [ "${1:-}" = --shell ]; then
  shift
  there bash -c "cd /src && $*"
else
  there bash -c 'cd /src && timerstore warmup'
  play='cd /src && export KILL_S=12 && python -P -m pytest -p no:cacheprovider --timeout=3600'
  if [ $# -gt 0 ]; then
    there bash -c "$play"' "$@"' pytest "$@"
  else
    which='-m "not prove and (not slow and not long or promise)"'
    which+=' -k "not page_that_is_missing and not all_units_are_read_once and not because_the_owner_ended"'
    there bash -c "cd /src && find tests -name 'test_*.py' | sort |
      xargs -n 10 bash -c '$play -q -n 2 $which \"\$@\" || [ \$? = 5 ]' pytest"
  fi
fi
