#!/bin/sh
# Install what the build and the tests need from Debian's packages. Does nothing where all of it is there.
set -eu

packages="gcc libc6-dev make clang llvm clang-format libbpf-dev libelf-dev zlib1g-dev pkg-config
python3-venv python3-dev python3-bpfcc linux-libc-dev linux-headers-$(dpkg --print-architecture)
iproute2 ethtool iperf3 procps"

missing=""
for package in $packages; do
	status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
	[ "$status" = "install ok installed" ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
	echo "install-deps: missing packages, and only root can install them:" >&2
	echo "  sudo apt-get install --no-install-recommends$missing" >&2
	exit 1
fi
echo "installing:$missing" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing >/dev/null
