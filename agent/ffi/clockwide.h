/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Loops over members in wide registers: AGENT_WIDE before a function compiles it for the registers that nearly every
 * x86-64 has besides for those that all have, and the processor decides at run time. glibc has exp and log for several
 * numbers at a time, right to 4 units in the last place, which the compiler only takes where they are declared so.
 */
#ifndef AGENT_CLOCKWIDE_H
#define AGENT_CLOCKWIDE_H

#include <math.h>

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#define AGENT_WIDE __attribute__((target_clones("avx2", "default")))
__attribute__((simd("notinbranch"))) double exp(double x);
__attribute__((simd("notinbranch"))) double log(double x);
#else
#define AGENT_WIDE
#endif

#endif
