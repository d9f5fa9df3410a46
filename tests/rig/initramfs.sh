#!/bin/busybox sh
# The guest's first stage: the machine's root, read-only below an overlay in memory, then init.sh in it.
b=/bin/busybox
$b mount -t proc none /proc
$b mount -t sysfs none /sys
$b mount -t devtmpfs none /dev
for module in /mod/*.ko; do $b insmod "$module"; done
shared=trans=virtio,version=9p2000.L,msize=1048576
$b mount -t 9p -o ro,$shared,cache=loose host /lower
$b mount -t tmpfs -o size=75% none /rw
$b mkdir /rw/up /rw/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/rw/up,workdir=/rw/work none /root
$b mkdir -p /root/run
$b mount -t tmpfs none /root/run
$b mkdir /root/run/rig
$b mount -t 9p -o $shared run /root/run/rig
for d in proc sys dev; do $b mount --move /$d /root/$d; done
exec $b switch_root /root /bin/bash /run/rig/init
