// SPDX-License-Identifier: GPL-2.0
/*
 * A capture application of the AF_XDP kind: it owns the XDP slot of an interface with a program ("xsk_redirect") that
 * redirects everything into its sockets, one per receive queue, in copy mode.
 *
 * By system calls alone, without libbpf or libxdp. Counts frames and bytes. Prints a JSON line with its program's id
 * when it is ready and one with the totals when it ends: at SIGTERM, SIGINT or its parent's death.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <linux/bpf.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_QUEUES 16
#define RING_SIZE  2048
#define FRAME_SIZE 2048

#ifndef BPF_XDP
#define BPF_XDP 37
#endif

static volatile sig_atomic_t stopped;
static uint64_t bytes;

struct ring {
	uint32_t *producer;
	uint32_t *consumer;
	void *entries;
};

struct queue {
	int fd;
	struct ring fill;
	struct ring rx;
	uint64_t received;
};

static void on_signal(int signo)
{
	(void)signo;
	stopped = 1;
}

static void die(const char *what)
{
	fprintf(stderr, "xskrecv: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int bpf(int command, union bpf_attr *attr)
{
	return syscall(SYS_bpf, command, attr, sizeof(*attr));
}

static int make_xskmap(int queues)
{
	union bpf_attr attr = {
	    .map_type = BPF_MAP_TYPE_XSKMAP,
	    .key_size = 4,
	    .value_size = 4,
	    .max_entries = queues,
	    .map_name = "xsk_sockets",
	};

	return bpf(BPF_MAP_CREATE, &attr);
}

/* return bpf_redirect_map(&xsk_sockets, ctx->rx_queue_index, XDP_PASS); */
static int load_redirect(int map)
{
	const struct bpf_insn program[] = {
	    {.code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 1, .off = 16},
	    {.code = BPF_LD | BPF_IMM | BPF_DW, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = map},
	    {0},
	    {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = XDP_PASS},
	    {.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map},
	    {.code = BPF_JMP | BPF_EXIT},
	};
	union bpf_attr attr = {
	    .prog_type = BPF_PROG_TYPE_XDP,
	    .insn_cnt = sizeof(program) / sizeof(program[0]),
	    .insns = (uintptr_t)program,
	    .license = (uintptr_t) "GPL",
	    .prog_name = "xsk_redirect",
	};

	return bpf(BPF_PROG_LOAD, &attr);
}

static uint32_t program_id(int program)
{
	struct bpf_prog_info info = {0};
	union bpf_attr attr = {
	    .info = {.bpf_fd = program, .info_len = sizeof(info), .info = (uintptr_t)&info},
	};

	return bpf(BPF_OBJ_GET_INFO_BY_FD, &attr) ? 0 : info.id;
}

static struct ring map_ring(int fd, off_t page, const struct xdp_ring_offset *at, size_t entry_bytes)
{
	char *base =
	    mmap(NULL, at->desc + RING_SIZE * entry_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, page);

	if (base == MAP_FAILED)
		die("mmap of a ring");
	return (struct ring){(void *)(base + at->producer), (void *)(base + at->consumer), base + at->desc};
}

static void open_queue(struct queue *queue, int ifindex, int index, int map)
{
	struct xdp_umem_reg umem = {.len = (uint64_t)RING_SIZE * FRAME_SIZE, .chunk_size = FRAME_SIZE};
	struct sockaddr_xdp at = {
	    .sxdp_family = AF_XDP,
	    .sxdp_ifindex = ifindex,
	    .sxdp_queue_id = index,
	    .sxdp_flags = XDP_COPY,
	};
	struct xdp_mmap_offsets offsets;
	socklen_t offsets_len = sizeof(offsets);
	union bpf_attr attr = {.map_fd = map};
	int size = RING_SIZE;
	void *frames;

	queue->fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (queue->fd < 0)
		die("AF_XDP socket");
	frames = mmap(NULL, umem.len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (frames == MAP_FAILED)
		die("mmap of frames");
	umem.addr = (uintptr_t)frames;
	if (setsockopt(queue->fd, SOL_XDP, XDP_UMEM_REG, &umem, sizeof(umem)) ||
	    setsockopt(queue->fd, SOL_XDP, XDP_UMEM_FILL_RING, &size, sizeof(size)) ||
	    setsockopt(queue->fd, SOL_XDP, XDP_UMEM_COMPLETION_RING, &size, sizeof(size)) ||
	    setsockopt(queue->fd, SOL_XDP, XDP_RX_RING, &size, sizeof(size)) ||
	    getsockopt(queue->fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &offsets_len))
		die("AF_XDP rings");
	queue->fill = map_ring(queue->fd, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, sizeof(uint64_t));
	queue->rx = map_ring(queue->fd, XDP_PGOFF_RX_RING, &offsets.rx, sizeof(struct xdp_desc));
	for (uint64_t i = 0; i < RING_SIZE; i++)
		((uint64_t *)queue->fill.entries)[i] = i * FRAME_SIZE;
	__atomic_store_n(queue->fill.producer, RING_SIZE, __ATOMIC_RELEASE);
	if (bind(queue->fd, (struct sockaddr *)&at, sizeof(at)))
		die("bind an AF_XDP socket");

	attr.key = (uintptr_t)&index;
	attr.value = (uintptr_t)&queue->fd;
	if (bpf(BPF_MAP_UPDATE_ELEM, &attr))
		die("XSKMAP");
}

/* Count what has come and hand the frames back at once. */
static void drain(struct queue *queue)
{
	uint32_t from = *queue->rx.consumer;
	uint32_t to = __atomic_load_n(queue->rx.producer, __ATOMIC_ACQUIRE);
	uint32_t free_at = *queue->fill.producer;

	for (; from != to; from++, free_at++) {
		const struct xdp_desc *desc = (struct xdp_desc *)queue->rx.entries + from % RING_SIZE;

		queue->received++;
		bytes += desc->len;
		((uint64_t *)queue->fill.entries)[free_at % RING_SIZE] = desc->addr / FRAME_SIZE * FRAME_SIZE;
	}
	__atomic_store_n(queue->rx.consumer, to, __ATOMIC_RELEASE);
	__atomic_store_n(queue->fill.producer, free_at, __ATOMIC_RELEASE);
}

static uint64_t dropped_by(const struct queue *queue)
{
	struct xdp_statistics stats = {0};
	socklen_t len = sizeof(stats);

	if (getsockopt(queue->fd, SOL_XDP, XDP_STATISTICS, &stats, &len))
		die("statistics");
	return stats.rx_dropped + stats.rx_ring_full + stats.rx_fill_ring_empty_descs;
}

int main(int argc, char **argv)
{
	static const struct option known[] = {
	    {"if", required_argument, NULL, 'i'},
	    {"queues", required_argument, NULL, 'q'},
	    {0},
	};
	static struct queue queues[MAX_QUEUES];
	struct pollfd poll_fds[MAX_QUEUES];
	struct sigaction act = {.sa_handler = on_signal};
	union bpf_attr link = {0};
	int n_queues = 1, c, ifindex, map, program;
	const char *ifname = NULL;
	uint64_t received = 0, dropped = 0;

	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (c == 'i')
			ifname = optarg;
		else if (c == 'q')
			n_queues = atoi(optarg);
		else
			n_queues = 0;
	}
	if (!ifname || n_queues < 1 || n_queues > MAX_QUEUES) {
		fprintf(stderr, "usage: xskrecv --if NAME [--queues N]\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGINT, &act, NULL);

	ifindex = if_nametoindex(ifname);
	if (!ifindex)
		die(ifname);
	map = make_xskmap(n_queues);
	if (map < 0)
		die("XSKMAP");
	program = load_redirect(map);
	if (program < 0)
		die("load the program");
	for (int i = 0; i < n_queues; i++) {
		open_queue(&queues[i], ifindex, i, map);
		poll_fds[i] = (struct pollfd){.fd = queues[i].fd, .events = POLLIN};
	}
	link.link_create.prog_fd = program;
	link.link_create.target_ifindex = ifindex;
	link.link_create.attach_type = BPF_XDP;
	if (bpf(BPF_LINK_CREATE, &link) < 0)
		die("attach the program");
	printf("{\"ready\": true, \"program_id\": %u}\n", program_id(program));
	fflush(stdout);

	while (!stopped) {
		poll(poll_fds, n_queues, 100);
		for (int i = 0; i < n_queues; i++)
			drain(&queues[i]);
	}
	for (int i = 0; i < n_queues; i++) {
		drain(&queues[i]);
		received += queues[i].received;
		dropped += dropped_by(&queues[i]);
	}
	printf("{\"received\": %llu, \"bytes\": %llu, \"dropped\": %llu, \"by_queue\": [",
	       (unsigned long long)received, (unsigned long long)bytes, (unsigned long long)dropped);
	for (int i = 0; i < n_queues; i++)
		printf("%s%llu", i ? ", " : "", (unsigned long long)queues[i].received);
	printf("]}\n");
	return 0;
}
