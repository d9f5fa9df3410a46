#!/bin/sh
# Unpack Debian's chrony into a directory, for the tests that feed a real chronyd. It is not installed: its package
# would replace the machine's time daemon and set its clock.
set -eu

directory=$1
mkdir -p "$directory"
cd "$directory"
apt-get download -qq chrony 2>/dev/null || {
	[ "$(id -u)" != 0 ] || apt-get update -qq
	apt-get download -qq chrony
}
for package in chrony_*.deb; do
	dpkg-deb --extract "$package" .
	rm "$package"
done
