// SPDX-License-Identifier: GPL-2.0
/*
 * The testbed's own programs, never loaded by `agent run`:
 *
 * stamp_egress  tc egress on the sending veth. Plays the capture switch: appends the Metamako / Arista 7130 trailer
 *               with the time of a simulated PHC, and writes the same moment in CLOCK_MONOTONIC into the payload,
 *               for the consumer.
 * burn_ingress  tc ingress on the noise veth: an expensive protocol handler, for background load in softirq.
 * follow_idle, count_ipi, count_ipis  at the tracepoints cpu_idle, ipi_send_cpu and ipi_send_cpumask (Linux 6.4): the
 *               interrupts that one process sends to idle CPUs.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../tools/testbed/payload.h"

char LICENSE[] SEC("license") = "GPL";

/* linux/bpf.h of older distributions doesn't have enum tcx_action_base. */
#define TCX_NEXT -1
#define TCX_DROP 2

#define ETH_MIN_BYTES \
	60 /* without FCS: shorter frames are padded on the wire, and the trailer follows the padding */
#define TRAILER_BYTES 16
#define PHC_SHIFT     40
#define NS_PER_S      1000000000ULL
#define BURN_STEPS    1000000 /* bounds the burn, should the clock stand still */
#define TX_MONO_OFFSET \
	(ETH_HLEN + sizeof(struct iphdr) + sizeof(struct udphdr) + offsetof(struct payload, tx_mono_ns))

/* phc = phc0 + D + ((D * adj) >> PHC_SHIFT), D = mono - mono0: from mono0 until the next segment begins. */
struct segment {
	__u64 mono0_ns;
	__u64 phc0_ns;
	__s64 adj;
};

/* User space writes segment[(seq + 1) & 1], then increments seq, all before the new segment's mono0: which
 * segment holds is decided by the packet's own time, so the true PHC time of any moment is known exactly. */
struct simulated_phc {
	__u32 seq;
	__u32 pad;
	struct segment segment[2];
};

struct testbed_config {
	__u16 port; /* first UDP destination port of the test flows */
	__u16 flows;
	__u16 queues;
	__u16 device_id;
	__u8 port_id;
	__u8 pad[7];
	__u64 burn_ns;
};

struct testbed_counters {
	__u64 stamped;
	__u64 failed; /* the frame couldn't be lengthened */
	__u64 burned;
};

/* Metamako / Arista 7130, all big endian. */
struct trailer {
	__be32
	    fcs; /* of the frame as it arrived at the switch. A placeholder: a CRC over the frame would come too late */
	__be32 seconds;
	__be32 nanoseconds;
	__u8 flags;
	__be16 device_id;
	__u8 port_id;
} __attribute__((packed));

#define IPI_CPUS 64

struct testbed_ipis {
	__u32 pid; /* whose are counted */
	__u32 pad;
	__u64 sent[IPI_CPUS]; /* by the idle CPU that they went to; those above are left out */
	__u8 idle[IPI_CPUS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct testbed_ipis);
} tb_ipis SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct simulated_phc);
} tb_phc SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct testbed_config);
} tb_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct testbed_counters);
} tb_counters SEC(".maps");

static __always_inline __u64 phc_time(const struct simulated_phc *phc, __u64 mono)
{
	__u32 seq = *(const volatile __u32 *)&phc->seq;
	const struct segment *now = &phc->segment[seq & 1];
	__s64 delta;

	if (mono < now->mono0_ns)
		now = &phc->segment[(seq + 1) & 1];
	delta = mono - now->mono0_ns;
	return now->phc0_ns + delta + ((delta * now->adj) >> PHC_SHIFT);
}

/* The flow number of a test packet (IPv4 without options, UDP, a port in the configured range), or -1. */
static __always_inline int flow_of(struct __sk_buff *skb, const struct testbed_config *config)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);
	struct udphdr *udp = (void *)(ip + 1);
	__u16 flow;

	if ((void *)(udp + 1) > end)
		return -1;
	if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->version != 4 || ip->ihl != 5 ||
	    ip->protocol != IPPROTO_UDP)
		return -1;
	flow = bpf_ntohs(udp->dest) - config->port;
	return flow < config->flows ? flow : -1;
}

SEC("tc")
int stamp_egress(struct __sk_buff *skb)
{
	__u32 zero = 0, length = skb->len;
	struct testbed_config *config = bpf_map_lookup_elem(&tb_config, &zero);
	struct testbed_counters *counters = bpf_map_lookup_elem(&tb_counters, &zero);
	struct simulated_phc *phc = bpf_map_lookup_elem(&tb_phc, &zero);
	struct trailer trailer = {0};
	__u64 mono, now;
	int flow;

	if (!config || !counters || !phc)
		return TCX_NEXT;
	flow = flow_of(skb, config);
	if (flow < 0)
		return TCX_NEXT;
	/* A queue per flow that is the same in each run; without this the socket's random hash decides. */
	if (config->queues)
		skb->queue_mapping = flow % config->queues + 1;
	if (length < ETH_MIN_BYTES)
		length = ETH_MIN_BYTES;
	if (bpf_skb_change_tail(skb, length + TRAILER_BYTES, 0)) {
		__sync_fetch_and_add(&counters->failed, 1);
		return TCX_NEXT;
	}
	__sync_fetch_and_add(&counters->stamped, 1);
	trailer.device_id = bpf_htons(config->device_id);
	trailer.port_id = config->port_id;

	/* As late as can be: from here on it is the capture path. */
	mono = bpf_ktime_get_ns();
	now = phc_time(phc, mono);
	trailer.seconds = bpf_htonl(now / NS_PER_S);
	trailer.nanoseconds = bpf_htonl(now % NS_PER_S);
	if (skb->len >= TX_MONO_OFFSET + sizeof(mono) + TRAILER_BYTES)
		bpf_skb_store_bytes(skb, TX_MONO_OFFSET, &mono, sizeof(mono), 0);
	bpf_skb_store_bytes(skb, length, &trailer, sizeof(trailer), 0);
	return TCX_NEXT;
}

static long burn_step(__u32 index, void *context)
{
	(void)index;
	return bpf_ktime_get_ns() >= *(__u64 *)context;
}

SEC("tc")
int burn_ingress(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct testbed_config *config = bpf_map_lookup_elem(&tb_config, &zero);
	struct testbed_counters *counters = bpf_map_lookup_elem(&tb_counters, &zero);
	__u64 until;

	(void)skb;
	if (!config || !counters)
		return TCX_NEXT;
	until = bpf_ktime_get_ns() + config->burn_ns;
	bpf_loop(BURN_STEPS, burn_step, &until, 0);
	__sync_fetch_and_add(&counters->burned, 1);
	return TCX_DROP;
}

static __always_inline struct testbed_ipis *own_ipis(void)
{
	__u32 zero = 0;
	struct testbed_ipis *ipis = bpf_map_lookup_elem(&tb_ipis, &zero);

	return ipis && ipis->pid == bpf_get_current_pid_tgid() >> 32 ? ipis : NULL;
}

/* What goes to a CPU that runs something is the scheduler's business with that, such as taking a task over from it. */
static __always_inline void ipi_sent(struct testbed_ipis *ipis, __u32 cpu)
{
	asm volatile(
	    ""
	    : "+r"(
		cpu)); /* else it is compared before it is cut to 32 bits, and the verifier knows nothing */
	if (cpu < IPI_CPUS && ipis->idle[cpu])
		__sync_fetch_and_add(&ipis->sent[cpu], 1);
}

/* (unsigned int state, unsigned int cpu): all ones as the state is the end of it */
SEC("raw_tp")
int follow_idle(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 zero = 0, cpu = ctx->args[1];
	struct testbed_ipis *ipis = bpf_map_lookup_elem(&tb_ipis, &zero);

	asm volatile("" : "+r"(cpu));
	if (ipis && cpu < IPI_CPUS)
		ipis->idle[cpu] = (__u32)ctx->args[0] != ~0U;
	return 0;
}

/* (unsigned int cpu, unsigned long callsite, void *callback) */
SEC("raw_tp")
int count_ipi(struct bpf_raw_tracepoint_args *ctx)
{
	struct testbed_ipis *ipis = own_ipis();

	if (ipis)
		ipi_sent(ipis, ctx->args[0]);
	return 0;
}

/* (const struct cpumask *cpumask, unsigned long callsite, void *callback) */
SEC("raw_tp")
int count_ipis(struct bpf_raw_tracepoint_args *ctx)
{
	struct testbed_ipis *ipis = own_ipis();
	__u64 mask = 0;

	if (!ipis || bpf_probe_read_kernel(&mask, sizeof(mask), (const void *)ctx->args[0]))
		return 0;
	for (int cpu = 0; cpu < IPI_CPUS; cpu++)
		if (mask >> cpu & 1)
			ipi_sent(ipis, cpu);
	return 0;
}
