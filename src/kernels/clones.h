#pragma once

// Functions that are compiled once per instruction set; which copy runs is decided when the program is
// loaded. What they call has to be inlined.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DDC_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DDC_CLONES
#endif
#define DDC_INLINE inline __attribute__((always_inline))
#define DDC_ALWAYS __attribute__((always_inline))
