# The guest's second stage, as its init: file systems, CPUs and NICs, then the command.
# shellcheck shell=bash source=/dev/null
. /run/rig/settings
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
for name in modprobe insmod rmmod lsmod; do ln -sf "$kmod" /usr/local/sbin/$name; done
echo /usr/local/sbin/modprobe >/proc/sys/kernel/modprobe # what the kernel itself asks for: qdiscs, classifiers
mkdir -p /usr/src
for headers in "${modules%/lib/modules/*}"/usr/src/linux-headers-*; do ln -sfn "$headers" /usr/src/; done
mkdir -p "/lib/modules/$release" /dev/pts /dev/shm /run/lock
mount --bind "$modules" "/lib/modules/$release"
ln -sf /proc/self/fd /dev/fd
mount -t devpts none /dev/pts
mount -t tmpfs none /dev/shm
mount -t cgroup2 none /sys/fs/cgroup
mount -t bpf none /sys/fs/bpf
mount -t debugfs none /sys/kernel/debug
mount -t tracefs none /sys/kernel/tracing
[ -z "$writable" ] || {
	mkdir -p "$writable"
	mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576 writable "$writable"
}
hostname rig
ip link set lo up
for cpu in /sys/devices/system/cpu/cpu*/online; do echo 1 >"$cpu"; done
modprobe igb || exit
ip netns add peer
for directory in /sys/class/net/eth?; do # by address: the order in which they are found varies
	case $(cat "$directory/address") in
	*:01) nic=${directory##*/} ;;
	*:02) peer=${directory##*/} ;;
	esac
done
ip link set "$peer" netns peer name eth1
[ "$nic" = eth0 ] || ip link set "$nic" name eth0
ip addr add 192.0.2.1/24 dev eth0
ip link set eth0 up
ip -n peer link set lo up
ip -n peer addr add 192.0.2.2/24 dev eth1
ip -n peer link set eth1 up
for ((i = 0; i < 100; i++)); do
	[ "$(cat /sys/class/net/eth0/carrier 2>/dev/null)" != 1 ] || break
	sleep 0.1
done
touch /run/rig/begun
setsid bash /run/rig/command </dev/null >/dev/vport*p1 2>&1
echo $? >/run/rig/code
sync
printf '\0' | dd of=/dev/port bs=1 seek=1281 2>/dev/null # isa-debug-exit ends QEMU at once
exec "$busybox" poweroff -f
