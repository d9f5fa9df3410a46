// SPDX-License-Identifier: GPL-2.0
/*
 * The receiving application: one UDP socket per flow, epoll, recvmmsg; it compares its own CLOCK_MONOTONIC with
 * the transmit time in each payload.
 *
 * Prints one JSON line per time slice with the slice's delay histogram (sparse: [bucket, count] pairs, 32
 * sub-buckets per octave, see bucket_of) and, at SIGTERM, SIGINT or its parent's death, one with the totals.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <linux/types.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "payload.h"

#define MAX_FLOWS 1024
#define BATCH	  64
#define SUB_BITS  5
#define BUCKETS	  1152 /* up to 2^36 ns */
#define NS_PER_S  1000000000LL

static volatile sig_atomic_t stopped;

struct flow {
	int fd;
	uint64_t received;
	uint64_t next_seq; /* one above the highest seen */
	uint64_t reordered;
};

static struct flow flows[MAX_FLOWS];
static uint32_t hist[BUCKETS];
static uint64_t slice_n, foreign;
static long work_loops; /* what the application computes of each packet */

static void on_signal(int signo)
{
	(void)signo;
	stopped = 1;
}

static void die(const char *what)
{
	fprintf(stderr, "consumer: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int64_t mono_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

/* Log-linear: exact below 64 ns, then 32 buckets per octave (within 3 %). */
static int bucket_of(uint64_t ns)
{
	int shift = ns < (1 << SUB_BITS) ? 0 : 63 - __builtin_clzll(ns) - SUB_BITS;
	int bucket = (shift << SUB_BITS) + (int)(ns >> shift);

	return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

static void print_slice(int64_t start_ns, int64_t length_ns)
{
	const char *sep = "";

	printf("{\"mono_ns\": %lld, \"length_ns\": %lld, \"n\": %llu, \"hist\": [", (long long)start_ns,
	       (long long)length_ns, (unsigned long long)slice_n);
	for (int i = 0; i < BUCKETS; i++) {
		if (hist[i]) {
			printf("%s[%d, %u]", sep, i, hist[i]);
			sep = ", ";
		}
	}
	printf("]}\n");
	fflush(stdout);
	memset(hist, 0, sizeof(hist));
	slice_n = 0;
}

static void count(struct flow *flow, const struct payload *payload, unsigned int len, int64_t now)
{
	int64_t delay;

	if (len < sizeof(*payload) || payload->magic != PAYLOAD_MAGIC) {
		foreign++;
		return;
	}
	delay = now - (int64_t)payload->tx_mono_ns;
	hist[bucket_of(delay < 0 ? 0 : delay)]++;
	slice_n++;
	flow->received++;
	if (payload->seq < flow->next_seq)
		flow->reordered++;
	else
		flow->next_seq = payload->seq + 1;
}

/* In loops, not in time: interrupts that come meanwhile make it longer. */
static void work(void)
{
	for (volatile long i = 0; i < work_loops; i++)
		;
}

static void receive(struct flow *flow)
{
	static struct payload payloads[BATCH];
	static struct iovec iov[BATCH];
	static struct mmsghdr msgs[BATCH];
	int64_t now;
	int n;

	for (int i = 0; i < BATCH; i++) {
		iov[i] = (struct iovec){&payloads[i], sizeof(payloads[i])};
		msgs[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1};
	}
	n = recvmmsg(flow->fd, msgs, BATCH, MSG_DONTWAIT, NULL);
	now = mono_ns();
	for (int i = 0; i < n; i++) {
		count(flow, &payloads[i], msgs[i].msg_len, now);
		work();
	}
}

static int open_flow(int epoll, int port, int index)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = index};
	int bytes = 4 << 20;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		die("socket");
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
	if (bind(fd, (struct sockaddr *)&at, sizeof(at)))
		die("bind");
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
		die("epoll");
	return fd;
}

static void print_totals(int n_flows, double seconds)
{
	uint64_t received = 0, lost = 0, reordered = 0;

	for (int i = 0; i < n_flows; i++) {
		received += flows[i].received;
		lost += flows[i].next_seq - flows[i].received;
		reordered += flows[i].reordered;
	}
	printf("{\"received\": %llu, \"lost\": %llu, \"reordered\": %llu, \"foreign\": %llu, \"seconds\": "
	       "%.6f}\n",
	       (unsigned long long)received, (unsigned long long)lost, (unsigned long long)reordered,
	       (unsigned long long)foreign, seconds);
}

int main(int argc, char **argv)
{
	static const struct option known[] = {
	    {"port", required_argument, NULL, 'p'},
	    {"flows", required_argument, NULL, 'f'},
	    {"cpu", required_argument, NULL, 'c'},
	    {"fifo", required_argument, NULL, 'F'},
	    {"slice-ms", required_argument, NULL, 's'},
	    {"work", required_argument, NULL, 'w'},
	    {0},
	};
	int port = 20000, n_flows = 1, cpu = -1, fifo = 0, c, epoll;
	struct sigaction act = {.sa_handler = on_signal};
	struct epoll_event events[BATCH];
	int64_t slice_ns = 100000000, start, slice_start;

	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (c) {
		case 'p':
			port = atoi(optarg);
			break;
		case 'f':
			n_flows = atoi(optarg);
			break;
		case 'c':
			cpu = atoi(optarg);
			break;
		case 'F':
			fifo = atoi(optarg);
			break;
		case 's':
			slice_ns = atoll(optarg) * 1000000;
			break;
		case 'w':
			work_loops = atol(optarg);
			break;
		default:
			n_flows = 0;
		}
	}
	if (n_flows < 1 || n_flows > MAX_FLOWS || port < 1 || port + n_flows > 65536 || slice_ns < 1) {
		fprintf(stderr, "usage: consumer [--port P] [--flows N] [--cpu N] [--fifo PRIO] [--slice-ms "
				"MS] [--work LOOPS]\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGINT, &act, NULL);
	if (cpu >= 0) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		if (sched_setaffinity(0, sizeof(set), &set))
			die("pin to CPU");
	}
	if (fifo) {
		struct sched_param param = {.sched_priority = fifo};

		if (sched_setscheduler(0, SCHED_FIFO, &param))
			fprintf(stderr, "consumer: no real-time priority (%s), going on without\n",
				strerror(errno));
	}
	epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0)
		die("epoll");
	for (int i = 0; i < n_flows; i++)
		flows[i].fd = open_flow(epoll, port + i, i);
	printf("{\"ready\": true}\n");
	fflush(stdout);

	start = slice_start = mono_ns();
	while (!stopped) {
		int n = epoll_wait(epoll, events, BATCH, slice_ns / 1000000);
		int64_t now;

		for (int i = 0; i < n; i++)
			receive(&flows[events[i].data.u32]);
		now = mono_ns();
		if (now - slice_start >= slice_ns) {
			print_slice(slice_start, now - slice_start);
			slice_start = now;
		}
	}
	print_slice(slice_start, mono_ns() - slice_start);
	print_totals(n_flows, (mono_ns() - start) / (double)NS_PER_S);
	return 0;
}
