// SPDX-License-Identifier: GPL-2.0
/*
 * testnic - paired network interfaces with hardware clocks of known truth, to test programs that use stamps.
 *
 * Each interface has a PTP hardware clock of its own. A packet is stamped in the receiver's clock at the moment the
 * peer transmits it, and waits in one of the receiver's rings until NAPI serves it, after what coalescing says. There it is
 * copied into pages, as DMA would do: native XDP with metadata and fragments sees it, then the stack.
 *
 * /sys/kernel/debug/testnic/IF/ has the clock (its rate, wander, jumps, history) and the faults; see the end.
 */
#include <linux/debugfs.h>
#include <linux/ethtool.h>
#include <linux/etherdevice.h>
#include <linux/filter.h>
#include <linux/hrtimer.h>
#include <linux/if_vlan.h>
#include <linux/module.h>
#include <linux/net_tstamp.h>
#include <linux/netdevice.h>
#include <linux/prandom.h>
#include <linux/ptp_clock_kernel.h>
#include <linux/seq_file.h>
#include <linux/seqlock.h>
#include <linux/skbuff.h>
#include <linux/timekeeping.h>
#include <linux/timer.h>
#include <linux/version.h>
#include <linux/vmalloc.h>
#include <net/dst.h>
#include <net/xdp.h>
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
#include <net/page_pool/helpers.h>
#else
#include <net/page_pool.h>
#endif

#define TN_MAX_QUEUES 16
#define TN_RING	      1024 /* packets that wait in a receive queue */
#define TN_BUFFER     (PAGE_SIZE - XDP_PACKET_HEADROOM - SKB_DATA_ALIGN(sizeof(struct skb_shared_info)))
#define TN_MAX_MTU    9000
#define TN_TICK_MS    20   /* the clock's history has an entry a tick */
#define TN_HISTORY    8192 /* 163 s */
#define TN_RATE_SHIFT 48   /* rates are fractions of 2^48: 3.6e-6 ppb */
#define TN_FRACTION   32   /* below a nanosecond, PHC time has 32 bits */
#define PPT_PER_ONE   1000000000000LL

static unsigned int pairs = 1;
module_param(pairs, uint, 0444);
MODULE_PARM_DESC(pairs, "pairs of interfaces: tn0 and tn1, tn2 and tn3, ...");
static unsigned int queues = 4;
module_param(queues, uint, 0444);
MODULE_PARM_DESC(queues, "receive and transmit queues of each interface");
static unsigned int seed = 1;
module_param(seed, uint, 0444);
MODULE_PARM_DESC(seed, "of the clocks' wander");

enum tn_rx_fault {
	TN_RX_GOOD,
	TN_RX_MISSING,	 /* no stamp */
	TN_RX_ZERO,	 /* there is a stamp, of 0 */
	TN_RX_DUPLICATE, /* the stamp of the packet before */
	TN_RX_LATE,	 /* stamped when NAPI serves it, not when it arrives */
	TN_RX_WRAPPED,	 /* 2^32 ns behind: the upper half was read too early */
};
static const char *const tn_rx_fault_names[] = {"good", "missing", "zero", "duplicate", "late", "wrapped"};

enum tn_tx_fault {
	TN_TX_GOOD,
	TN_TX_MISSING,
	TN_TX_LATE, /* handed over TN_TX_LATE_MS after the packet */
	TN_TX_NEXT, /* each packet gets the stamp of the one before */
};
static const char *const tn_tx_fault_names[] = {"good", "missing", "late", "next"};
#define TN_TX_LATE_MS 50

struct tn_fault {
	const char *const *names;
	int count;
	u32 now;
};

struct tn_moment {
	u64 raw_ns, mono_ns, phc_ns, width_ns;
	s64 rate_ppt;
};

struct tn_clock {
	seqlock_t lock;
	u64 raw_ns; /* the state below holds at this CLOCK_MONOTONIC_RAW */
	u64 phc_ns;
	u32 phc_fraction;
	s64 rate;    /* of the oscillator against raw */
	s64 dialled; /* what adjfine added */
	s64 wander;  /* walk of the rate over one second, standard deviation */
	struct rnd_state random;
	struct timer_list tick;
	struct tn_moment *history;
	u64 moments;
	bool refuse_reads;
	struct ptp_clock_info info;
	struct ptp_clock *ptp;
};

struct tn_stamp {
	u64 ns;
	bool there;
};

struct tn_cb {
	struct tn_stamp stamp;
};

struct tn_priv;

struct tn_queue {
	struct napi_struct napi;
	struct net_device *dev;
	struct sk_buff_head ring;
	struct hrtimer interrupt;
	struct page_pool *pool;
	struct xdp_rxq_info rxq;
	u64 last_stamp_ns;
	u64 counter; /* of packets, for faults that hit one in N */
	u64 packets, bytes, missed;
};

struct tn_priv {
	struct net_device *dev, *peer;
	struct tn_clock clock;
	struct bpf_prog __rcu *prog;
	struct hwtstamp_config stamping;
	struct dentry *debug;
	u32 rx_usecs, rx_frames;
	struct tn_fault rx_fault, tx_fault;
	u32 rx_fault_every;
	bool refuse_filter, lose_stamps_on_xdp;
	spinlock_t tx_lock; /* of the two below */
	struct skb_shared_hwtstamps tx_before;
	struct sk_buff_head tx_late;
	struct delayed_work tx_late_work;
	struct tn_queue queue[TN_MAX_QUEUES];
};

/* What a driver adds behind an xdp_buff for its metadata functions. */
struct tn_xdp {
	struct xdp_buff xdp;
	struct tn_stamp stamp;
};

static struct net_device *tn_devices[2 * 8];

/* ---- the clock ---------------------------------------------------------------------------------------------- */

static s64 tn_total_rate(const struct tn_clock *clock)
{
	/* (1 + rate)(1 + dialled) - 1 */
	return clock->rate + clock->dialled +
	       (s64)(((__int128)clock->rate * clock->dialled) >> TN_RATE_SHIFT);
}

/* PHC time at a raw time not before the state's; *fraction gets what is below 1 ns. */
static u64 tn_phc_at(const struct tn_clock *clock, u64 raw_ns, u32 *fraction)
{
	s64 elapsed = raw_ns - clock->raw_ns;
	__int128 gained = (__int128)elapsed * tn_total_rate(clock) >> (TN_RATE_SHIFT - TN_FRACTION);

	gained += clock->phc_fraction;
	if (fraction)
		*fraction = (u32)gained;
	return clock->phc_ns + elapsed + (s64)(gained >> TN_FRACTION);
}

static u64 tn_phc_of_raw(struct tn_clock *clock, u64 raw_ns)
{
	unsigned int sequence;
	u64 phc_ns;

	do {
		sequence = read_seqbegin(&clock->lock);
		phc_ns = tn_phc_at(clock, raw_ns, NULL);
	} while (read_seqretry(&clock->lock, sequence));
	return phc_ns;
}

static u64 tn_phc_now(struct tn_clock *clock)
{
	return tn_phc_of_raw(clock, ktime_get_raw_ns());
}

/* Bring the state forward to now. Under the lock. */
static void tn_advance(struct tn_clock *clock)
{
	u64 raw_ns = ktime_get_raw_ns();
	u32 fraction;

	clock->phc_ns = tn_phc_at(clock, raw_ns, &fraction);
	clock->phc_fraction = fraction;
	clock->raw_ns = raw_ns;
}

static s64 tn_ppt(s64 rate)
{
	return (s64)((__int128)rate * PPT_PER_ONE >> TN_RATE_SHIFT);
}

static s64 tn_rate(s64 ppt)
{
	bool negative = ppt < 0;
	u64 size = mul_u64_u64_div_u64(negative ? -ppt : ppt, 1ULL << TN_RATE_SHIFT, PPT_PER_ONE);

	return negative ? -(s64)size : (s64)size;
}

/* Raw and mono of one moment, as near as four tries get, with the time between the reads around it. Under the lock. */
static void tn_remember(struct tn_clock *clock)
{
	struct tn_moment *moment = &clock->history[clock->moments % TN_HISTORY];
	int try;

	moment->width_ns = U64_MAX;
	for (try = 0; try < 4; try++) {
		u64 before = ktime_get_raw_ns();
		u64 mono = ktime_get_ns();
		u64 width = ktime_get_raw_ns() - before;

		if (width >= moment->width_ns)
			continue;
		moment->width_ns = width;
		moment->raw_ns = before + width / 2;
		moment->mono_ns = mono;
	}
	moment->phc_ns = tn_phc_at(clock, moment->raw_ns, NULL);
	moment->rate_ppt = tn_ppt(tn_total_rate(clock));
	clock->moments++;
}

/* Nearly normal, with a standard deviation of 2^32: the sum of twelve uniform numbers. */
static s64 tn_random(struct rnd_state *random)
{
	s64 sum = -(6LL << 32);
	int i;

	for (i = 0; i < 12; i++)
		sum += prandom_u32_state(random);
	return sum;
}

static void tn_tick(struct timer_list *timer)
{
	struct tn_clock *clock = container_of(timer, struct tn_clock, tick);
	unsigned long flags;

	write_seqlock_irqsave(&clock->lock, flags);
	tn_advance(clock);
	/* A step's variance is the tick's part of a second's: sqrt(0.02) = 9268 / 2^16. */
	clock->rate += (s64)((__int128)clock->wander * tn_random(&clock->random) * 9268 >> 48);
	tn_remember(clock);
	write_sequnlock_irqrestore(&clock->lock, flags);
	mod_timer(&clock->tick, jiffies + msecs_to_jiffies(TN_TICK_MS));
}

/* A change of the clock's state: what was before and what is after both go into the history. */
#define tn_change(clock, statement)                                \
	do {                                                       \
		unsigned long flags;                               \
		write_seqlock_irqsave(&(clock)->lock, flags);      \
		tn_advance(clock);                                 \
		tn_remember(clock);                                \
		statement;                                         \
		tn_remember(clock);                                \
		write_sequnlock_irqrestore(&(clock)->lock, flags); \
	} while (0)

static int tn_adjfine(struct ptp_clock_info *info, long scaled_ppm)
{
	struct tn_clock *clock = container_of(info, struct tn_clock, info);
	/* scaled_ppm has 16 bits below 1 ppm: 2^48 / 10^6 / 2^16. */
	s64 dialled = div_s64((s64)scaled_ppm << 32, 1000000);

	tn_change(clock, clock->dialled = dialled);
	return 0;
}

static int tn_adjtime(struct ptp_clock_info *info, s64 delta_ns)
{
	struct tn_clock *clock = container_of(info, struct tn_clock, info);

	tn_change(clock, clock->phc_ns += delta_ns);
	return 0;
}

static int tn_settime(struct ptp_clock_info *info, const struct timespec64 *time)
{
	struct tn_clock *clock = container_of(info, struct tn_clock, info);

	tn_change(clock, clock->phc_ns = timespec64_to_ns(time));
	return 0;
}

static int tn_gettimex(struct ptp_clock_info *info, struct timespec64 *time,
		       struct ptp_system_timestamp *system)
{
	struct tn_clock *clock = container_of(info, struct tn_clock, info);
	u64 phc_ns;

	if (clock->refuse_reads)
		return -EBUSY;
	ptp_read_system_prets(system);
	phc_ns = tn_phc_now(clock);
	ptp_read_system_postts(system);
	*time = ns_to_timespec64(phc_ns);
	return 0;
}

static int tn_crosststamp(struct ptp_clock_info *info, struct system_device_crosststamp *cross)
{
	struct tn_clock *clock = container_of(info, struct tn_clock, info);
	struct system_time_snapshot snapshot;

	if (clock->refuse_reads)
		return -EBUSY;
	ktime_get_snapshot(&snapshot);
	cross->sys_realtime = snapshot.real;
	cross->sys_monoraw = snapshot.raw;
	cross->device = ns_to_ktime(tn_phc_of_raw(clock, ktime_to_ns(snapshot.raw)));
	return 0;
}

static int tn_clock_start(struct tn_clock *clock, int number)
{
	clock->history = vzalloc(TN_HISTORY * sizeof(*clock->history));
	if (!clock->history)
		return -ENOMEM;
	seqlock_init(&clock->lock);
	prandom_seed_state(&clock->random, seed + number);
	clock->raw_ns = ktime_get_raw_ns();
	clock->phc_ns = ktime_get_clocktai_ns();
	clock->info = (struct ptp_clock_info){
	    .owner = THIS_MODULE,
	    .max_adj = 500000000,
	    .adjfine = tn_adjfine,
	    .adjtime = tn_adjtime,
	    .settime64 = tn_settime,
	    .gettimex64 = tn_gettimex,
	    .getcrosststamp = tn_crosststamp,
	};
	snprintf(clock->info.name, sizeof(clock->info.name), "testnic%d", number);
	clock->ptp = ptp_clock_register(&clock->info, NULL);
	if (IS_ERR_OR_NULL(clock->ptp)) {
		vfree(clock->history);
		return clock->ptp ? PTR_ERR(clock->ptp) : -EOPNOTSUPP;
	}
	timer_setup(&clock->tick, tn_tick, 0);
	mod_timer(&clock->tick, jiffies + 1);
	return 0;
}

static void tn_clock_stop(struct tn_clock *clock)
{
	ptp_clock_unregister(clock->ptp);
	del_timer_sync(&clock->tick);
	vfree(clock->history);
}

/* ---- receiving ---------------------------------------------------------------------------------------------- */

static bool tn_stamping(const struct tn_priv *priv)
{
	return READ_ONCE(priv->stamping.rx_filter) != HWTSTAMP_FILTER_NONE;
}

/* What the receiver's driver makes of an arrival's stamp. In NAPI, or under the ring's lock. */
static struct tn_stamp tn_faulty(struct tn_priv *priv, struct tn_queue *queue, u64 arrival_ns)
{
	struct tn_stamp stamp = {.ns = arrival_ns, .there = true};
	u32 every = READ_ONCE(priv->rx_fault_every);
	u32 fault = READ_ONCE(priv->rx_fault.now);

	if (!tn_stamping(priv))
		return (struct tn_stamp){};
	if (queue->counter++ % (every ?: 1))
		fault = TN_RX_GOOD;
	switch (fault) {
	case TN_RX_MISSING:
		return (struct tn_stamp){};
	case TN_RX_ZERO:
		stamp.ns = 0;
		break;
	case TN_RX_DUPLICATE:
		stamp.ns = queue->last_stamp_ns;
		break;
	case TN_RX_LATE:
		stamp.ns = tn_phc_now(&priv->clock);
		break;
	case TN_RX_WRAPPED:
		stamp.ns -= 1ULL << 32;
		break;
	}
	queue->last_stamp_ns = stamp.ns;
	return stamp;
}

/* Copy a packet into pages of the queue's pool, as an xdp_buff with fragments. */
static bool tn_fill(struct tn_queue *queue, const struct sk_buff *skb, struct xdp_buff *xdp)
{
	struct skb_shared_info *shared = NULL;
	unsigned int done = 0;

	xdp_init_buff(xdp, PAGE_SIZE, &queue->rxq);
	while (done < skb->len) {
		unsigned int size = min_t(unsigned int, skb->len - done, TN_BUFFER);
		struct page *page = page_pool_dev_alloc_pages(queue->pool);

		if (!page)
			goto fail;
		if (skb_copy_bits(skb, done, page_address(page) + XDP_PACKET_HEADROOM, size)) {
			page_pool_put_full_page(queue->pool, page, true);
			goto fail;
		}
		if (!done) {
			xdp_prepare_buff(xdp, page_address(page), XDP_PACKET_HEADROOM, size, true);
			shared = xdp_get_shared_info_from_buff(xdp);
		} else {
			if (!xdp_buff_has_frags(xdp)) {
				xdp_buff_set_frags_flag(xdp);
				shared->nr_frags = 0;
				shared->xdp_frags_size = 0;
			}
			__skb_fill_page_desc_noacc(shared, shared->nr_frags++, page, XDP_PACKET_HEADROOM,
						   size);
			shared->xdp_frags_size += size;
		}
		done += size;
	}
	return true;
fail:
	if (done)
		xdp_return_buff(xdp);
	return false;
}

static struct sk_buff *tn_build_skb(struct tn_queue *queue, struct xdp_buff *xdp)
{
	struct skb_shared_info *shared = xdp_get_shared_info_from_buff(xdp);
	unsigned int frags = 0, frags_size = 0;
	struct sk_buff *skb;

	if (xdp_buff_has_frags(xdp)) {
		frags = shared->nr_frags;
		frags_size = shared->xdp_frags_size;
	}
	skb = napi_build_skb(xdp->data_hard_start, PAGE_SIZE);
	if (!skb) {
		xdp_return_buff(xdp);
		return NULL;
	}
	skb_mark_for_recycle(skb);
	skb_reserve(skb, xdp->data - xdp->data_hard_start);
	__skb_put(skb, xdp->data_end - xdp->data);
	if (xdp->data > xdp->data_meta)
		skb_metadata_set(skb, xdp->data - xdp->data_meta);
	if (frags)
		xdp_update_skb_shared_info(skb, frags, frags_size, frags * PAGE_SIZE, false);
	skb_record_rx_queue(skb, queue - ((struct tn_priv *)netdev_priv(queue->dev))->queue);
	return skb;
}

static netdev_tx_t tn_transmit(struct sk_buff *skb, struct net_device *dev);

/* One packet through XDP and up the stack. True if it was redirected: then the caller flushes. */
static bool tn_receive(struct tn_priv *priv, struct tn_queue *queue, struct bpf_prog *prog,
		       struct sk_buff *arrived)
{
	struct tn_xdp buff = {.stamp = ((struct tn_cb *)arrived->cb)->stamp};
	u32 action = XDP_PASS;
	struct sk_buff *skb;
	bool filled;

	queue->packets++;
	queue->bytes += arrived->len;
	if (buff.stamp.there && READ_ONCE(priv->rx_fault.now) == TN_RX_LATE)
		buff.stamp = tn_faulty(priv, queue, buff.stamp.ns);
	filled = tn_fill(queue, arrived, &buff.xdp);
	napi_consume_skb(arrived, 1);
	if (!filled) {
		queue->missed++;
		return false;
	}
	if (prog)
		action = bpf_prog_run_xdp(prog, &buff.xdp);
	switch (action) {
	case XDP_PASS:
	case XDP_TX:
		break;
	case XDP_REDIRECT:
		if (!xdp_do_redirect(queue->dev, &buff.xdp, prog))
			return true;
		fallthrough;
	case XDP_DROP:
	case XDP_ABORTED:
	default:
		xdp_return_buff(&buff.xdp);
		return false;
	}
	skb = tn_build_skb(queue, &buff.xdp);
	if (!skb)
		return false;
	if (action == XDP_TX) {
		tn_transmit(skb, queue->dev);
		return false;
	}
	if (buff.stamp.there)
		skb_hwtstamps(skb)->hwtstamp = ns_to_ktime(buff.stamp.ns);
	skb->protocol = eth_type_trans(skb, queue->dev);
	skb->ip_summed = CHECKSUM_UNNECESSARY; /* no cable, no errors; the sender computes it in software */
	napi_gro_receive(&queue->napi, skb);
	return false;
}

static int tn_poll(struct napi_struct *napi, int budget)
{
	struct tn_queue *queue = container_of(napi, struct tn_queue, napi);
	struct tn_priv *priv = netdev_priv(queue->dev);
	bool redirected = false;
	struct bpf_prog *prog;
	struct sk_buff *skb;
	int done = 0;

	rcu_read_lock();
	prog = rcu_dereference(priv->prog);
	while (done < budget && (skb = skb_dequeue(&queue->ring))) {
		redirected |= tn_receive(priv, queue, prog, skb);
		done++;
	}
	if (redirected)
		xdp_do_flush();
	rcu_read_unlock();
	if (done < budget && napi_complete_done(napi, done) && !skb_queue_empty(&queue->ring))
		napi_schedule(napi);
	return done;
}

static enum hrtimer_restart tn_interrupt(struct hrtimer *timer)
{
	napi_schedule(&container_of(timer, struct tn_queue, interrupt)->napi);
	return HRTIMER_NORESTART;
}

/* A packet arrives at the end of the cable. */
static void tn_arrive(struct tn_priv *priv, struct sk_buff *skb)
{
	struct tn_queue *queue =
	    &priv->queue[reciprocal_scale(skb_get_hash(skb), priv->dev->real_num_rx_queues)];
	u32 usecs = READ_ONCE(priv->rx_usecs), waiting;
	struct tn_stamp *stamp = &((struct tn_cb *)skb->cb)->stamp;
	unsigned long flags;

	BUILD_BUG_ON(sizeof(struct tn_cb) > sizeof(skb->cb));
	spin_lock_irqsave(&queue->ring.lock, flags);
	if (skb_queue_len(&queue->ring) >= TN_RING) {
		queue->missed++;
		spin_unlock_irqrestore(&queue->ring.lock, flags);
		kfree_skb(skb);
		return;
	}
	/* Under the lock, so that a queue's stamps don't go backwards. */
	if (READ_ONCE(priv->rx_fault.now) == TN_RX_LATE)
		*stamp = (struct tn_stamp){.ns = tn_phc_now(&priv->clock), .there = tn_stamping(priv)};
	else
		*stamp = tn_faulty(priv, queue, tn_phc_now(&priv->clock));
	__skb_queue_tail(&queue->ring, skb);
	waiting = skb_queue_len(&queue->ring);
	spin_unlock_irqrestore(&queue->ring.lock, flags);

	if (!usecs || waiting >= READ_ONCE(priv->rx_frames))
		napi_schedule(&queue->napi);
	else if (!hrtimer_active(&queue->interrupt))
		hrtimer_start(&queue->interrupt, ns_to_ktime(usecs * NSEC_PER_USEC), HRTIMER_MODE_REL_PINNED);
}

/* ---- transmitting ------------------------------------------------------------------------------------------- */

static void tn_tx_late(struct work_struct *work)
{
	struct tn_priv *priv = container_of(work, struct tn_priv, tx_late_work.work);
	struct sk_buff *skb;

	while ((skb = skb_dequeue(&priv->tx_late))) {
		struct skb_shared_hwtstamps stamps = {.hwtstamp =
							  ns_to_ktime(((struct tn_cb *)skb->cb)->stamp.ns)};

		skb_complete_tx_timestamp(skb, &stamps);
	}
}

static void tn_tx_stamp(struct tn_priv *priv, struct sk_buff *skb)
{
	struct skb_shared_hwtstamps stamps = {.hwtstamp = ns_to_ktime(tn_phc_now(&priv->clock))};
	struct skb_shared_hwtstamps before;
	struct sk_buff *clone;
	unsigned long flags;

	if (!(skb_shinfo(skb)->tx_flags & SKBTX_HW_TSTAMP) || priv->stamping.tx_type != HWTSTAMP_TX_ON)
		return;
	skb_shinfo(skb)->tx_flags |= SKBTX_IN_PROGRESS;
	switch (READ_ONCE(priv->tx_fault.now)) {
	case TN_TX_GOOD:
		skb_tstamp_tx(skb, &stamps);
		break;
	case TN_TX_LATE:
		clone = skb_clone_sk(skb);
		if (!clone)
			break;
		((struct tn_cb *)clone->cb)->stamp.ns = ktime_to_ns(stamps.hwtstamp);
		skb_queue_tail(&priv->tx_late, clone);
		schedule_delayed_work(&priv->tx_late_work, msecs_to_jiffies(TN_TX_LATE_MS));
		break;
	case TN_TX_NEXT:
		spin_lock_irqsave(&priv->tx_lock, flags);
		before = priv->tx_before;
		priv->tx_before = stamps;
		spin_unlock_irqrestore(&priv->tx_lock, flags);
		if (before.hwtstamp)
			skb_tstamp_tx(skb, &before);
		break;
	}
}

static netdev_tx_t tn_transmit(struct sk_buff *skb, struct net_device *dev)
{
	struct tn_priv *priv = netdev_priv(dev);
	unsigned int length = skb->len;

	skb_tx_timestamp(skb);
	tn_tx_stamp(priv, skb);
	if (!netif_running(priv->peer)) {
		dev_core_stats_tx_dropped_inc(dev);
		kfree_skb(skb);
		return NETDEV_TX_OK;
	}
	skb_orphan(skb);
	nf_reset_ct(skb);
	skb_dst_drop(skb);
	dev_sw_netstats_tx_add(dev, 1, length);
	tn_arrive(netdev_priv(priv->peer), skb);
	return NETDEV_TX_OK;
}

/* ---- the interface ------------------------------------------------------------------------------------------ */

static void tn_queue_stop(struct tn_queue *queue)
{
	napi_disable(&queue->napi);
	hrtimer_cancel(&queue->interrupt);
	skb_queue_purge(&queue->ring);
	xdp_rxq_info_unreg(&queue->rxq);
	page_pool_destroy(queue->pool);
	queue->pool = NULL;
}

static int tn_queue_start(struct tn_queue *queue, u32 number)
{
	struct page_pool_params params = {
	    .pool_size = 256,
	    .nid = NUMA_NO_NODE,
	};
	int error;

	queue->pool = page_pool_create(&params);
	if (IS_ERR(queue->pool))
		return PTR_ERR(queue->pool);
	error = __xdp_rxq_info_reg(&queue->rxq, queue->dev, number, queue->napi.napi_id, PAGE_SIZE);
	if (error)
		goto destroy;
	error = xdp_rxq_info_reg_mem_model(&queue->rxq, MEM_TYPE_PAGE_POOL, queue->pool);
	if (error)
		goto unreg;
	napi_enable(&queue->napi);
	return 0;
unreg:
	xdp_rxq_info_unreg(&queue->rxq);
destroy:
	page_pool_destroy(queue->pool);
	return error;
}

static int tn_open(struct net_device *dev)
{
	struct tn_priv *priv = netdev_priv(dev);
	u32 number;
	int error;

	for (number = 0; number < dev->real_num_rx_queues; number++) {
		error = tn_queue_start(&priv->queue[number], number);
		if (error)
			goto stop;
	}
	netif_carrier_on(dev);
	netif_tx_start_all_queues(dev);
	return 0;
stop:
	while (number--)
		tn_queue_stop(&priv->queue[number]);
	return error;
}

static int tn_stop(struct net_device *dev)
{
	struct tn_priv *priv = netdev_priv(dev);
	u32 number;

	netif_tx_stop_all_queues(dev);
	netif_carrier_off(dev);
	synchronize_net(); /* nobody transmits to us any more */
	for (number = 0; number < dev->real_num_rx_queues; number++)
		tn_queue_stop(&priv->queue[number]);
	cancel_delayed_work_sync(&priv->tx_late_work);
	skb_queue_purge(&priv->tx_late);
	return 0;
}

static void tn_get_stats(struct net_device *dev, struct rtnl_link_stats64 *stats)
{
	struct tn_priv *priv = netdev_priv(dev);
	u32 number;

	dev_fetch_sw_netstats(stats, dev->tstats); /* what was sent */
	for (number = 0; number < dev->real_num_rx_queues; number++) {
		stats->rx_packets += READ_ONCE(priv->queue[number].packets);
		stats->rx_bytes += READ_ONCE(priv->queue[number].bytes);
		stats->rx_missed_errors += READ_ONCE(priv->queue[number].missed);
	}
}

static int tn_set_stamping(struct tn_priv *priv, struct ifreq *request)
{
	struct hwtstamp_config config;

	if (copy_from_user(&config, request->ifr_data, sizeof(config)))
		return -EFAULT;
	if (config.flags || config.tx_type > HWTSTAMP_TX_ON)
		return -ERANGE;
	if (config.rx_filter != HWTSTAMP_FILTER_NONE) {
		if (priv->refuse_filter)
			return -ERANGE;
		config.rx_filter = HWTSTAMP_FILTER_ALL;
	}
	priv->stamping = config;
	return copy_to_user(request->ifr_data, &config, sizeof(config)) ? -EFAULT : 0;
}

static int tn_ioctl(struct net_device *dev, struct ifreq *request, int command)
{
	struct tn_priv *priv = netdev_priv(dev);

	switch (command) {
	case SIOCSHWTSTAMP:
		return tn_set_stamping(priv, request);
	case SIOCGHWTSTAMP:
		return copy_to_user(request->ifr_data, &priv->stamping, sizeof(priv->stamping)) ? -EFAULT : 0;
	default:
		return -EOPNOTSUPP;
	}
}

static int tn_xdp_setup(struct net_device *dev, struct bpf_prog *prog, struct netlink_ext_ack *extack)
{
	struct tn_priv *priv = netdev_priv(dev);
	struct bpf_prog *old;

	if (prog && !prog->aux->xdp_has_frags && dev->mtu + VLAN_ETH_HLEN > TN_BUFFER) {
		NL_SET_ERR_MSG_MOD(extack,
				   "packets don't fit into one buffer, and the program takes no fragments");
		return -EOPNOTSUPP;
	}
	old = rtnl_dereference(priv->prog);
	rcu_assign_pointer(priv->prog, prog);
	if (old)
		bpf_prog_put(old);
	if (prog && priv->lose_stamps_on_xdp)
		priv->stamping.rx_filter = HWTSTAMP_FILTER_NONE;
	return 0;
}

static int tn_bpf(struct net_device *dev, struct netdev_bpf *bpf)
{
	return bpf->command == XDP_SETUP_PROG ? tn_xdp_setup(dev, bpf->prog, bpf->extack) : -EINVAL;
}

static int tn_init(struct net_device *dev)
{
	dev->tstats = netdev_alloc_pcpu_stats(struct pcpu_sw_netstats);
	return dev->tstats ? 0 : -ENOMEM;
}

static void tn_uninit(struct net_device *dev)
{
	free_percpu(dev->tstats);
}

static const struct net_device_ops tn_netdev_ops = {
    .ndo_init = tn_init,
    .ndo_uninit = tn_uninit,
    .ndo_open = tn_open,
    .ndo_stop = tn_stop,
    .ndo_start_xmit = tn_transmit,
    .ndo_get_stats64 = tn_get_stats,
    .ndo_set_mac_address = eth_mac_addr,
    .ndo_validate_addr = eth_validate_addr,
    .ndo_eth_ioctl = tn_ioctl,
    .ndo_bpf = tn_bpf,
};

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
static int tn_xdp_rx_timestamp(const struct xdp_md *context, u64 *timestamp)
{
	const struct tn_xdp *buff = (const void *)context;

	if (!buff->stamp.there)
		return -ENODATA;
	*timestamp = buff->stamp.ns;
	return 0;
}

static const struct xdp_metadata_ops tn_xdp_metadata_ops = {
    .xmo_rx_timestamp = tn_xdp_rx_timestamp,
};
#endif

static void tn_get_drvinfo(struct net_device *dev, struct ethtool_drvinfo *info)
{
	strscpy(info->driver, KBUILD_MODNAME, sizeof(info->driver));
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
static int tn_get_ts_info(struct net_device *dev, struct kernel_ethtool_ts_info *info)
#else
static int tn_get_ts_info(struct net_device *dev, struct ethtool_ts_info *info)
#endif
{
	struct tn_priv *priv = netdev_priv(dev);

	info->so_timestamping = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_RX_SOFTWARE |
				SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_TX_HARDWARE |
				SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE;
	info->phc_index = ptp_clock_index(priv->clock.ptp);
	info->tx_types = BIT(HWTSTAMP_TX_OFF) | BIT(HWTSTAMP_TX_ON);
	info->rx_filters = BIT(HWTSTAMP_FILTER_NONE) | BIT(HWTSTAMP_FILTER_ALL);
	return 0;
}

static int tn_get_coalesce(struct net_device *dev, struct ethtool_coalesce *coalesce,
			   struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *extack)
{
	struct tn_priv *priv = netdev_priv(dev);

	coalesce->rx_coalesce_usecs = priv->rx_usecs;
	coalesce->rx_max_coalesced_frames = priv->rx_frames;
	return 0;
}

static int tn_set_coalesce(struct net_device *dev, struct ethtool_coalesce *coalesce,
			   struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *extack)
{
	struct tn_priv *priv = netdev_priv(dev);

	if (coalesce->rx_coalesce_usecs > 100000 || !coalesce->rx_max_coalesced_frames ||
	    coalesce->rx_max_coalesced_frames > TN_RING)
		return -EINVAL;
	WRITE_ONCE(priv->rx_usecs, coalesce->rx_coalesce_usecs);
	WRITE_ONCE(priv->rx_frames, coalesce->rx_max_coalesced_frames);
	return 0;
}

static void tn_get_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	channels->max_combined = dev->real_num_rx_queues;
	channels->combined_count = dev->real_num_rx_queues;
}

static const struct ethtool_ops tn_ethtool_ops = {
    .supported_coalesce_params = ETHTOOL_COALESCE_RX_USECS | ETHTOOL_COALESCE_RX_MAX_FRAMES,
    .get_drvinfo = tn_get_drvinfo,
    .get_link = ethtool_op_get_link,
    .get_ts_info = tn_get_ts_info,
    .get_coalesce = tn_get_coalesce,
    .set_coalesce = tn_set_coalesce,
    .get_channels = tn_get_channels,
};

/* ---- /sys/kernel/debug/testnic/IF ---------------------------------------------------------------------------- */

/* rate_ppt: the oscillator's, against CLOCK_MONOTONIC_RAW, in 10^-12; what is dialled in comes on top. */
static int tn_rate_get(void *data, u64 *ppt)
{
	*ppt = tn_ppt(((struct tn_clock *)data)->rate);
	return 0;
}

static int tn_rate_set(void *data, u64 ppt)
{
	struct tn_clock *clock = data;

	tn_change(clock, clock->rate = tn_rate(ppt));
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE_SIGNED(tn_rate_fops, tn_rate_get, tn_rate_set, "%lld\n");

/* wander_ppt: how far the rate walks within a second, standard deviation. */
static int tn_wander_get(void *data, u64 *ppt)
{
	*ppt = tn_ppt(((struct tn_clock *)data)->wander);
	return 0;
}

static int tn_wander_set(void *data, u64 ppt)
{
	struct tn_clock *clock = data;

	tn_change(clock, clock->wander = tn_rate(ppt));
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE_SIGNED(tn_wander_fops, tn_wander_get, tn_wander_set, "%lld\n");

/* jump_ns: written, it moves the clock's phase. */
static int tn_jump(void *data, u64 ns)
{
	struct tn_clock *clock = data;

	tn_change(clock, clock->phc_ns += (s64)ns);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE_SIGNED(tn_jump_fops, NULL, tn_jump, "%lld\n");

/* reset: written, the clock starts again at 0 with nothing dialled in, as after a reset of the device. */
static int tn_reset(void *data, u64 unused)
{
	struct tn_clock *clock = data;

	tn_change(clock, clock->phc_ns = clock->phc_fraction = clock->dialled = 0);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(tn_reset_fops, NULL, tn_reset, "%llu\n");

/*
 * history: `raw_ns mono_ns phc_ns rate_ppt width_ns` a line, one each 20 ms and two at each change, the oldest first.
 * rate_ppt is the whole rate against raw; width_ns is how far apart the reads around mono were.
 */
static int tn_history_show(struct seq_file *file, void *unused)
{
	struct tn_clock *clock = file->private;
	u64 count = READ_ONCE(clock->moments), i = count > TN_HISTORY ? count - TN_HISTORY : 0;

	for (; i < count; i++) {
		struct tn_moment moment;
		unsigned int sequence;

		do {
			sequence = read_seqbegin(&clock->lock);
			moment = clock->history[i % TN_HISTORY];
		} while (read_seqretry(&clock->lock, sequence));
		if (clock->moments - i <= TN_HISTORY)
			seq_printf(file, "%llu %llu %llu %lld %llu\n", moment.raw_ns, moment.mono_ns,
				   moment.phc_ns, moment.rate_ppt, moment.width_ns);
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(tn_history);

/* rx_fault, tx_fault: the name of what is wrong with stamps; rx_fault_every: with one packet in N. */
static int tn_fault_show(struct seq_file *file, void *unused)
{
	const struct tn_fault *fault = file->private;

	seq_printf(file, "%s\n", fault->names[READ_ONCE(fault->now)]);
	return 0;
}

static int tn_fault_open(struct inode *inode, struct file *file)
{
	return single_open(file, tn_fault_show, inode->i_private);
}

static ssize_t tn_fault_write(struct file *file, const char __user *from, size_t size, loff_t *offset)
{
	struct tn_fault *fault = ((struct seq_file *)file->private_data)->private;
	char text[16] = {};
	int found;

	if (size >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, size))
		return -EFAULT;
	found = __sysfs_match_string(fault->names, fault->count, text);
	if (found < 0)
		return found;
	WRITE_ONCE(fault->now, found);
	return size;
}

static const struct file_operations tn_fault_fops = {
    .owner = THIS_MODULE,
    .open = tn_fault_open,
    .read = seq_read,
    .write = tn_fault_write,
    .llseek = seq_lseek,
    .release = single_release,
};

static void tn_debugfs_add(struct tn_priv *priv, struct dentry *top)
{
	struct tn_clock *clock = &priv->clock;

	priv->debug = debugfs_create_dir(priv->dev->name, top);
	debugfs_create_file("rate_ppt", 0600, priv->debug, clock, &tn_rate_fops);
	debugfs_create_file("wander_ppt", 0600, priv->debug, clock, &tn_wander_fops);
	debugfs_create_file("jump_ns", 0200, priv->debug, clock, &tn_jump_fops);
	debugfs_create_file("reset", 0200, priv->debug, clock, &tn_reset_fops);
	debugfs_create_file("history", 0400, priv->debug, clock, &tn_history_fops);
	debugfs_create_file("rx_fault", 0600, priv->debug, &priv->rx_fault, &tn_fault_fops);
	debugfs_create_u32("rx_fault_every", 0600, priv->debug, &priv->rx_fault_every);
	debugfs_create_file("tx_fault", 0600, priv->debug, &priv->tx_fault, &tn_fault_fops);
	debugfs_create_bool("refuse_reads", 0600, priv->debug, &clock->refuse_reads); /* of the PHC: EBUSY */
	debugfs_create_bool("refuse_filter", 0600, priv->debug, &priv->refuse_filter);
	debugfs_create_bool("lose_stamps_on_xdp", 0600, priv->debug, &priv->lose_stamps_on_xdp);
}

/* ---- the module --------------------------------------------------------------------------------------------- */

static struct dentry *tn_debugfs;

static void tn_queue_init(struct tn_priv *priv, u32 number)
{
	struct tn_queue *queue = &priv->queue[number];

	queue->dev = priv->dev;
	skb_queue_head_init(&queue->ring);
	hrtimer_init(&queue->interrupt, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED);
	queue->interrupt.function = tn_interrupt;
	netif_napi_add(priv->dev, &queue->napi, tn_poll);
}

static struct net_device *tn_create(int number)
{
	struct net_device *dev;
	struct tn_priv *priv;
	int error;
	u32 i;

	dev = alloc_etherdev_mqs(sizeof(*priv), queues, queues);
	if (!dev)
		return ERR_PTR(-ENOMEM);
	priv = netdev_priv(dev);
	priv->dev = dev;
	priv->rx_frames = 64;
	priv->rx_fault = (struct tn_fault){tn_rx_fault_names, ARRAY_SIZE(tn_rx_fault_names), TN_RX_GOOD};
	priv->tx_fault = (struct tn_fault){tn_tx_fault_names, ARRAY_SIZE(tn_tx_fault_names), TN_TX_GOOD};
	priv->rx_fault_every = 1;
	spin_lock_init(&priv->tx_lock);
	skb_queue_head_init(&priv->tx_late);
	INIT_DELAYED_WORK(&priv->tx_late_work, tn_tx_late);
	for (i = 0; i < queues; i++)
		tn_queue_init(priv, i);
	snprintf(dev->name, sizeof(dev->name), "tn%d", number);
	dev->netdev_ops = &tn_netdev_ops;
	dev->ethtool_ops = &tn_ethtool_ops;
	dev->max_mtu = TN_MAX_MTU;
	dev->features |= NETIF_F_RXCSUM | NETIF_F_HIGHDMA;
	dev->hw_features |= NETIF_F_RXCSUM;
	dev->priv_flags |= IFF_LIVE_ADDR_CHANGE;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	dev->xdp_features = NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT | NETDEV_XDP_ACT_RX_SG;
	dev->xdp_metadata_ops = &tn_xdp_metadata_ops;
#endif
	eth_hw_addr_random(dev);
	error = tn_clock_start(&priv->clock, number);
	if (error)
		goto free;
	return dev;
free:
	free_netdev(dev);
	return ERR_PTR(error);
}

static void tn_destroy(struct net_device *dev)
{
	struct tn_priv *priv = netdev_priv(dev);

	debugfs_remove_recursive(priv->debug);
	tn_clock_stop(&priv->clock);
	free_netdev(dev);
}

static void tn_remove_all(void)
{
	int number;

	/* Both ends of every cable first: each transmits to the other until it is gone. */
	for (number = 0; number < 2 * pairs && tn_devices[number]; number++)
		if (tn_devices[number]->reg_state == NETREG_REGISTERED)
			unregister_netdev(tn_devices[number]);
	for (number = 0; number < 2 * pairs && tn_devices[number]; number++)
		tn_destroy(tn_devices[number]);
	debugfs_remove_recursive(tn_debugfs);
}

static int __init tn_module_init(void)
{
	int number, error;

	if (!pairs || 2 * pairs > ARRAY_SIZE(tn_devices) || !queues || queues > TN_MAX_QUEUES)
		return -EINVAL;
	tn_debugfs = debugfs_create_dir(KBUILD_MODNAME, NULL);
	for (number = 0; number < 2 * pairs; number++) {
		struct net_device *dev = tn_create(number);

		if (IS_ERR(dev)) {
			error = PTR_ERR(dev);
			goto fail;
		}
		tn_devices[number] = dev;
	}
	for (number = 0; number < 2 * pairs; number++) {
		struct tn_priv *priv = netdev_priv(tn_devices[number]);

		priv->peer = tn_devices[number ^ 1];
		error = register_netdev(priv->dev);
		if (error)
			goto fail;
		netif_carrier_off(priv->dev);
		tn_debugfs_add(priv, tn_debugfs);
	}
	return 0;
fail:
	tn_remove_all();
	return error;
}
module_init(tn_module_init);
module_exit(tn_remove_all);

MODULE_DESCRIPTION("Paired test interfaces with hardware clocks of known truth");
MODULE_LICENSE("GPL");
