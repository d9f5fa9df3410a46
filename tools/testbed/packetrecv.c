// SPDX-License-Identifier: GPL-2.0
/*
 * A capture application of the AF_PACKET kind (as tcpdump or Suricata): a TPACKET_V3 ring on one interface.
 *
 * Counts the test flows' frames, and those of them that are longer than their IP packet by a trailer. Prints a JSON
 * line when it is ready and one with the totals when it ends: at SIGTERM, SIGINT or its parent's death.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/types.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCK_BYTES   (1 << 18)
#define BLOCKS	      64
#define FRAME_BYTES   2048
#define RETIRE_MS     10
#define TRAILER_BYTES 16

static volatile sig_atomic_t stopped;
static uint64_t received, with_trailer;

static void on_signal(int signo)
{
	(void)signo;
	stopped = 1;
}

static void die(const char *what)
{
	fprintf(stderr, "packetrecv: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void count(const struct tpacket3_hdr *frame, int port, int flows)
{
	const struct ethhdr *eth = (const void *)((const char *)frame + frame->tp_mac);
	const struct iphdr *ip = (const void *)(eth + 1);
	const struct udphdr *udp = (const void *)(ip + 1);
	unsigned int ip_frame;

	if (frame->tp_snaplen < sizeof(*eth) + sizeof(*ip) + sizeof(*udp) ||
	    eth->h_proto != htons(ETH_P_IP) || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
		return;
	if (ntohs(udp->dest) < port || ntohs(udp->dest) >= port + flows)
		return;
	received++;
	ip_frame = sizeof(*eth) + ntohs(ip->tot_len);
	if (frame->tp_len >= (ip_frame < ETH_ZLEN ? ETH_ZLEN : ip_frame) + TRAILER_BYTES)
		with_trailer++;
}

static void walk_block(struct tpacket_block_desc *block, int port, int flows)
{
	const struct tpacket3_hdr *frame = (const void *)((char *)block + block->hdr.bh1.offset_to_first_pkt);

	for (uint32_t i = 0; i < block->hdr.bh1.num_pkts; i++) {
		count(frame, port, flows);
		frame = (const void *)((const char *)frame + frame->tp_next_offset);
	}
	__atomic_store_n(&block->hdr.bh1.block_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
}

int main(int argc, char **argv)
{
	static const struct option known[] = {
	    {"if", required_argument, NULL, 'i'},
	    {"port", required_argument, NULL, 'p'},
	    {"flows", required_argument, NULL, 'f'},
	    {0},
	};
	struct sigaction act = {.sa_handler = on_signal};
	struct tpacket_req3 req = {
	    .tp_block_size = BLOCK_BYTES,
	    .tp_block_nr = BLOCKS,
	    .tp_frame_size = FRAME_BYTES,
	    .tp_frame_nr = BLOCK_BYTES / FRAME_BYTES * BLOCKS,
	    .tp_retire_blk_tov = RETIRE_MS,
	};
	struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
	struct tpacket_stats_v3 stats;
	socklen_t stats_len = sizeof(stats);
	int port = 20000, flows = 1, version = TPACKET_V3, c, fd;
	const char *ifname = NULL;
	unsigned int current = 0;
	struct pollfd poll_fd;
	char *ring;

	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (c == 'i')
			ifname = optarg;
		else if (c == 'p')
			port = atoi(optarg);
		else if (c == 'f')
			flows = atoi(optarg);
		else
			ifname = NULL, optind = argc;
	}
	if (!ifname) {
		fprintf(stderr, "usage: packetrecv --if NAME [--port P] [--flows N]\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGINT, &act, NULL);

	fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (fd < 0)
		die("socket");
	if (setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof(version)) ||
	    setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &req, sizeof(req)))
		die("ring");
	ring = mmap(NULL, (size_t)BLOCK_BYTES * BLOCKS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (ring == MAP_FAILED)
		die("mmap");
	at.sll_ifindex = if_nametoindex(ifname);
	if (!at.sll_ifindex || bind(fd, (struct sockaddr *)&at, sizeof(at)))
		die(ifname);
	printf("{\"ready\": true}\n");
	fflush(stdout);

	poll_fd = (struct pollfd){.fd = fd, .events = POLLIN};
	for (;;) {
		struct tpacket_block_desc *block = (void *)(ring + (size_t)BLOCK_BYTES * current);

		if (__atomic_load_n(&block->hdr.bh1.block_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER) {
			walk_block(block, port, flows);
			current = (current + 1) % BLOCKS;
			continue;
		}
		/* What is in a block that isn't full yet comes when the kernel retires it. */
		if (poll(&poll_fd, 1, stopped ? 3 * RETIRE_MS : 100) == 0 && stopped)
			break;
	}
	if (getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &stats, &stats_len))
		die("statistics");
	printf("{\"received\": %llu, \"with_trailer\": %llu, \"dropped\": %u}\n",
	       (unsigned long long)received, (unsigned long long)with_trailer, stats.tp_drops);
	return 0;
}
