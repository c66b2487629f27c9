/*
 * A tracepoint written out as <sys/sdt.h> would, for operands that a compiler cannot be made to
 * choose: the nop and its note, as text for one asm statement. The arguments are the note's own
 * text, e.g. "8@%%rbx -4@(%[vsize])".
 */
#ifndef FAKE_NODE_NOTE_H
#define FAKE_NODE_NOTE_H

#include "probes.h"

#if PROBES_HAVE_SEMAPHORES
#define NOTE_SEMAPHORE(provider, name) ".8byte " #provider "_" #name "_semaphore\n"
#else
#define NOTE_SEMAPHORE(provider, name) ".8byte 0\n"
#endif

#define PROBE_NOTE(provider, name, arguments)                                                 \
	"990:	nop\n"                                                                          \
	".pushsection .note.stapsdt,\"?\",\"note\"\n"                                         \
	".balign 4\n"                                                                         \
	".4byte 992f-991f, 994f-993f, 3\n"                                                    \
	"991:	.asciz \"stapsdt\"\n"                                                           \
	"992:	.balign 4\n"                                                                    \
	"993:	.8byte 990b\n"                                                                  \
	".8byte _.stapsdt.base\n" NOTE_SEMAPHORE(                                             \
		provider,                                                                     \
		name) ".asciz \"" #provider "\"\n"                                            \
		      ".asciz \"" #name "\"\n"                                                \
		      ".asciz \"" arguments "\"\n"                                            \
		      "994:	.balign 4\n"                                                      \
		      ".popsection\n"                                                         \
		      ".ifndef _.stapsdt.base\n"                                              \
		      ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
		      ".weak _.stapsdt.base\n"                                                \
		      ".hidden _.stapsdt.base\n"                                              \
		      "_.stapsdt.base: .space 1\n"                                            \
		      ".size _.stapsdt.base, 1\n"                                             \
		      ".popsection\n"                                                         \
		      ".endif\n"

/* How a note of this machine names memory at, and the 32 bits of, an operand of the asm. */
#ifdef __x86_64__
#define NOTE_AT(operand) "(%[" #operand "])"
#define NOTE_AT_OFFSET(operand, offset) #offset "(%[" #operand "])"
#define NOTE_LOW32(operand) "%k[" #operand "]"
#else
#define NOTE_AT(operand) "[%[" #operand "]]"
#define NOTE_AT_OFFSET(operand, offset) "[%[" #operand "], " #offset "]"
#define NOTE_LOW32(operand) "%w[" #operand "]"
#endif

#endif
