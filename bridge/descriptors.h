/* Files that this process may have open. Whoever reaches a socket can open as many connections as
 * he likes, and libzmq ends the process when there is no file left for one (EMFILE, on ipc
 * sockets). So connections get three quarters of what there is: the rest is for the node, its
 * executable and the journal. One that is too many is closed at once. */
#ifndef CORETAP_DESCRIPTORS_H
#define CORETAP_DESCRIPTORS_H

/* Of files, where the hard limit allows it. */
#define MAX_FILES 8192

/* At the start of main: raises the soft limit, and takes the numbers 0 to 2 where they are closed,
 * so that what is written there does not end in a file of ours. */
void descriptors_prepare(void);

/* Says how many connections were refused since the last call. */
void descriptors_tell(void);

#endif
