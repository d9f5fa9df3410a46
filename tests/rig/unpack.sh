#!/bin/sh
# Unpack what the rig runs on into a directory: QEMU 10 (the first emulated igb is QEMU 8's) with the libraries that
# this machine lacks, busybox, kmod and cpio for the initramfs, and guest kernels with their headers. All of it comes
# from Debian's archive; nothing is installed, and the machine's own package lists are left alone.
#
#   unpack.sh DIRECTORY host                        QEMU and tools, to DIRECTORY/host
#   unpack.sh DIRECTORY kernel-5.10 | kernel-6.1 | kernel-6.12    a kernel and its headers, to DIRECTORY/kernel-…
set -eu

directory=$(realpath -m "$1")
what=$2
apt_dir=$directory/apt
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=http://deb.debian.org
target=$directory/$what
mkdir -p "$apt_dir/lists/partial" "$apt_dir/archives/partial"
exec 9>"$apt_dir/lock"
flock 9
for suite in "debian bullseye" "debian bookworm" "debian-security bookworm-security" "debian bookworm-backports"; do
	echo "deb [signed-by=$keyring] $mirror/${suite% *} ${suite#* } main"
done >"$apt_dir/sources.list"

apt() {
	command=$1
	shift
	"apt-$command" -qq -o Dir::Etc::SourceList="$apt_dir/sources.list" -o Dir::Etc::SourceParts=/dev/null \
		-o Dir::State::Lists="$apt_dir/lists" -o Dir::Cache="$apt_dir" -o Dir::Cache::archives="$apt_dir/archives" \
		-o Debug::NoLocking=1 -o APT::Sandbox::User=root "$@"
}

depends() { # SUITE PACKAGE PATTERN: what a package depends on, by the beginning of its name
	apt cache depends --no-recommends -t "$1" "$2" | sed -n "s/^ *Depends: \($3[^ ]*\)$/\1/p" | head -1
}

apt get update
rm -rf "$apt_dir"/archives/*.deb "$directory/unpacking"
mkdir "$directory/unpacking"
case $what in
host)
	# What is installed here already, apt leaves out. Some machines have all of the tools.
	apt get install --yes --download-only --no-install-recommends -t bookworm-backports \
		qemu-system-x86 seabios busybox-static kmod cpio linuxptp >/dev/null
	;;
kernel-5.10 | kernel-6.1 | kernel-6.12)
	case $what in
	kernel-5.10) suite=bullseye ;;
	kernel-6.1) suite=bookworm-security ;;
	kernel-6.12) suite=bookworm-backports ;;
	esac
	image=$(depends $suite linux-image-amd64 linux-image-)
	headers=linux-headers-${image#linux-image-}
	(cd "$apt_dir/archives" && apt get download -t $suite "$image" "$headers" \
		"$(depends $suite "$headers" 'linux-headers-.*-common')" "$(depends $suite "$headers" linux-kbuild-)" >/dev/null)
	;;
*)
	echo "unpack.sh: there is no $what: host, kernel-5.10, kernel-6.1 or kernel-6.12" >&2
	exit 2
	;;
esac
for package in "$apt_dir"/archives/*.deb; do
	dpkg-deb --extract "$package" "$directory/unpacking"
done
rm "$apt_dir"/archives/*.deb
# The headers name each other by their installed place.
for makefile in "$directory"/unpacking/usr/src/linux-headers-*/Makefile; do
	[ ! -e "$makefile" ] || sed -i "s|^include /usr/src/|include $target/usr/src/|" "$makefile"
done
rm -rf "$target"
mv "$directory/unpacking" "$target"
