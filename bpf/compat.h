/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What differs between the two loaders, in one place.
 *
 * libbpf loads an object compiled beforehand. BCC compiles the same source at load time, with rules of its own: no
 * globals, no functions other than inlined ones, maps declared by its macros, no call of a map's method inside a
 * macro (so maps.h has one accessor function per map), and our headers are inlined by the loader, since BCC
 * rewrites the main file only.
 */
#ifndef AGENT_COMPAT_H
#define AGENT_COMPAT_H

#ifdef AGENT_BCC
#include <uapi/linux/bpf.h>
#define SEC(name)
/* BCC cannot link BPF-to-BPF calls. What the flush does per run is bounded by what the verifier walks through. */
#define BCC_SLOTS_MAX 128
#define BCC_FLUSH_MAX 8
#define SUBPROGRAM    static __always_inline
#else
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
/* Rare work: a function of its own keeps registers and instruction cache for the packet path. */
#define SUBPROGRAM static __attribute__((noinline))
#endif

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

#ifndef NULL
#define NULL ((void *)0)
#endif

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* Keeps the compiler from moving memory accesses across; the CPU itself orders what one CPU's contexts see. */
#define compiler_barrier() asm volatile("" : : : "memory")

/* Hides where a value came from, so that the compiler keeps a bound check that it believes to be redundant, or
 * doesn't fold an offset into a form that the verifier rejects. */
#define opaque(x) asm volatile("" : "+r"(x))

#define LOAD_ONCE(x)	 (*(const volatile typeof(x) *)&(x))
#define STORE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define from_be16(x) __builtin_bswap16(x)
#define from_be32(x) __builtin_bswap32(x)
#else
#define from_be16(x) (x)
#define from_be32(x) (x)
#endif

/* TCX_NEXT and TC_ACT_UNSPEC are the same number: go on to the next program, whoever attached it. Any other value
 * would silently disable the programs behind this one. */
#define TC_NEXT -1

#endif
