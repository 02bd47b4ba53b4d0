/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The kernel's names for integer types, which bpf_helpers.h needs. */
#ifndef NUMBERS_H
#define NUMBERS_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u16 __le16;
typedef __u32 __wsum;

#endif
