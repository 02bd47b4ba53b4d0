/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * For programs that tell masu where their parts begin and end.
 *
 * Under `masu run --local … --sections marked` each part, by the number that the program gives it, gets a unit of transfer of
 * its own that follows its working set: the rule of Midorikawa and Uchiyama, "Adaptive Page Size Control for Remote Page
 * Swapping" (2012). Everywhere else these calls do nothing, and nothing has to be linked for them.
 *
 *     swpin_countstart(3);
 *     for (...) ...            // a loop nest that is run again and again
 *     swpin_refresh(3);
 */
#ifndef MASU_H
#define MASU_H

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Section `section` (0 to 255) begins; and ends: what it brought from the store decides its next unit. The library that masu
 * loads has them. Without it they are null, and the macros call nothing.
 */
extern void swpin_countstart(int section) __attribute__((weak));
extern void swpin_refresh(int section) __attribute__((weak));
#define swpin_countstart(section) (swpin_countstart ? swpin_countstart(section) : (void)0)
#define swpin_refresh(section) (swpin_refresh ? swpin_refresh(section) : (void)0)

#ifdef __cplusplus
}
#endif
#endif
