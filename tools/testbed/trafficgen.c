// SPDX-License-Identifier: GPL-2.0
/*
 * A paced UDP sender: many flows, random gaps, some bursts, a sequence number per flow.
 *
 * It sleeps to absolute times, so the mean rate holds however late a single wake-up is; a sleep that overran
 * by more than MAX_LATE_NS (the machine was stopped) moves the schedule instead of sending the backlog at once.
 * Prints one JSON object when it ends: after --seconds, at SIGTERM or SIGINT, or when its parent dies.
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
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <math.h>
#include <unistd.h>

#include "payload.h"

#define MAX_FLOWS   1024
#define MAX_PAYLOAD 1400
#define MAX_LATE_NS 20000000LL
#define NS_PER_S    1000000000LL

static volatile sig_atomic_t stopped;

struct options {
	const char *dst;
	int port;
	int flows;
	double rate;	/* packets per second */
	double seconds; /* 0: until told */
	uint64_t seed;
	int cpu; /* -1: not pinned */
	int payload_bytes;
	int burst;	   /* largest burst */
	int burst_percent; /* of the send events; the others are single packets */
	int fifo;	   /* SCHED_FIFO priority, 0: the default policy */
};

static void on_signal(int signo)
{
	(void)signo;
	stopped = 1;
}

static void die(const char *what)
{
	fprintf(stderr, "trafficgen: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int64_t mono_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

/* splitmix64: the same numbers for the same seed on every machine. */
static uint64_t next_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9E3779B97F4A7C15ULL);

	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
	return z ^ (z >> 31);
}

/* Uniform in (0, 1]. */
static double next_uniform(uint64_t *state)
{
	return ((next_random(state) >> 11) + 1) * 0x1.0p-53;
}

static int parse(int argc, char **argv, struct options *o)
{
	static const struct option known[] = {
	    {"dst", required_argument, NULL, 'd'},     {"port", required_argument, NULL, 'p'},
	    {"flows", required_argument, NULL, 'f'},   {"rate", required_argument, NULL, 'r'},
	    {"seconds", required_argument, NULL, 's'}, {"seed", required_argument, NULL, 'e'},
	    {"cpu", required_argument, NULL, 'c'},     {"payload", required_argument, NULL, 'l'},
	    {"burst", required_argument, NULL, 'b'},   {"burst-percent", required_argument, NULL, 'B'},
	    {"fifo", required_argument, NULL, 'F'},    {0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (c) {
		case 'd':
			o->dst = optarg;
			break;
		case 'p':
			o->port = atoi(optarg);
			break;
		case 'f':
			o->flows = atoi(optarg);
			break;
		case 'r':
			o->rate = atof(optarg);
			break;
		case 's':
			o->seconds = atof(optarg);
			break;
		case 'e':
			o->seed = strtoull(optarg, NULL, 0);
			break;
		case 'c':
			o->cpu = atoi(optarg);
			break;
		case 'l':
			o->payload_bytes = atoi(optarg);
			break;
		case 'b':
			o->burst = atoi(optarg);
			break;
		case 'B':
			o->burst_percent = atoi(optarg);
			break;
		case 'F':
			o->fifo = atoi(optarg);
			break;
		default:
			return -1;
		}
	}
	if (!o->dst || o->flows < 1 || o->flows > MAX_FLOWS || !(o->rate > 0) || o->port < 1 ||
	    o->port + o->flows > 65536 || o->burst < 1 || o->payload_bytes < (int)sizeof(struct payload) ||
	    o->payload_bytes > MAX_PAYLOAD)
		return -1;
	return optind == argc ? 0 : -1;
}

static void prepare_process(const struct options *o)
{
	struct sigaction act = {.sa_handler = on_signal};
	struct sched_param param = {.sched_priority = o->fifo};

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	prctl(PR_SET_TIMERSLACK, 1);
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGINT, &act, NULL);
	if (o->cpu >= 0) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET(o->cpu, &set);
		if (sched_setaffinity(0, sizeof(set), &set))
			die("pin to CPU");
	}
	if (o->fifo && sched_setscheduler(0, SCHED_FIFO, &param))
		fprintf(stderr, "trafficgen: no real-time priority (%s), going on without\n",
			strerror(errno));
}

static void open_flows(const struct options *o, int *fds)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	int one = 1;

	if (inet_pton(AF_INET, o->dst, &to.sin_addr) != 1) {
		errno = EINVAL;
		die(o->dst);
	}
	for (int i = 0; i < o->flows; i++) {
		fds[i] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		if (fds[i] < 0)
			die("socket");
		/* Without an UDP checksum the stamping program may change the payload. */
		setsockopt(fds[i], SOL_SOCKET, SO_NO_CHECK, &one, sizeof(one));
		to.sin_port = htons(o->port + i);
		if (connect(fds[i], (struct sockaddr *)&to, sizeof(to)))
			die("connect");
	}
}

int main(int argc, char **argv)
{
	struct options o = {
	    .flows = 1,
	    .rate = 1000,
	    .cpu = -1,
	    .payload_bytes = 64,
	    .burst = 8,
	    .port = 20000,
	    .burst_percent = 3,
	};
	static int fds[MAX_FLOWS];
	static uint64_t seq[MAX_FLOWS];
	char buf[MAX_PAYLOAD] = {0};
	struct payload *payload = (struct payload *)buf;
	uint64_t random, sent = 0, failed = 0, resets = 0;
	int64_t start, next, end;
	double mean_burst, mean_gap_ns;

	if (parse(argc, argv, &o)) {
		fprintf(stderr,
			"usage: trafficgen --dst ADDR [--port P] [--flows N] [--rate PPS] [--seconds S] "
			"[--seed X]\n"
			"  [--cpu N] [--payload BYTES] [--burst N] [--burst-percent N] [--fifo PRIO]\n");
		return 2;
	}
	random = o.seed;
	prepare_process(&o);
	open_flows(&o, fds);
	payload->magic = PAYLOAD_MAGIC;

	mean_burst = 1 + o.burst_percent / 100.0 * (o.burst - 1) / 2.0;
	mean_gap_ns = mean_burst / o.rate * NS_PER_S;
	start = next = mono_ns();
	end = o.seconds > 0 ? start + (int64_t)(o.seconds * NS_PER_S) : INT64_MAX;

	while (!stopped && next < end) {
		struct timespec until = {.tv_sec = next / NS_PER_S, .tv_nsec = next % NS_PER_S};
		int count = 1;
		int64_t now;

		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		now = mono_ns();
		if (now - next > MAX_LATE_NS) {
			next = now;
			resets++;
		}
		if (next_random(&random) % 100 < (uint64_t)o.burst_percent)
			count = 1 + next_random(&random) % o.burst;
		while (count-- > 0 && !stopped) {
			int flow = next_random(&random) % o.flows;

			payload->flow = flow;
			payload->seq = seq[flow];
			payload->tx_mono_ns = mono_ns();
			if (send(fds[flow], buf, o.payload_bytes, 0) < 0) {
				if (errno == EINTR)
					continue;
				failed++; /* ENOBUFS, or ECONNREFUSED for an ICMP answer: the packet wasn't sent */
				continue;
			}
			seq[flow]++;
			sent++;
		}
		next += (int64_t)(-log(next_uniform(&random)) * mean_gap_ns);
	}
	printf("{\"sent\": %llu, \"failed\": %llu, \"schedule_resets\": %llu, \"seconds\": %.6f}\n",
	       (unsigned long long)sent, (unsigned long long)failed, (unsigned long long)resets,
	       (mono_ns() - start) / (double)NS_PER_S);
	return 0;
}
