/* Who may connect over tcp: CURVE encryption with a list of clients' public keys, asked for over
 * ZAP (rfc.zeromq.org/spec/27) inside this process. */
#ifndef CORETAP_ACCESS_H
#define CORETAP_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

struct access;

/* Reads the server's secret key and the clients' public keys. A key is 40 characters of Z85, the
 * first word of its line; other words name it; lines that begin with # are comments. Returns 0 or
 * -errno, said in the log. */
int access_open(struct access **access, const char *secret_file, const char *clients_file);
void access_close(struct access *access); /* NULL is fine; before the context ends */

/* Starts to answer for a libzmq context, before anything is bound in it. Returns 0 or -errno. */
int access_start(struct access *access, void *context);

/* Demands a known key of whoever connects to what the socket binds after this call. */
int access_demand(struct access *access, void *context, void *socket);

/* Readable when access_serve should be called. Edge-triggered: until it returns false. */
int access_fd(struct access *access);

/* Answers at most 16 questions. Returns whether there may be more. */
bool access_serve(struct access *access);

/* Reads the clients' keys again. When they cannot be read the old ones stay, which is logged. Who
 * is connected with a key that is not there any more is cut off. */
void access_reload(struct access *access);

/* Connections that were refused. A client that is refused tries again and again. */
uint64_t access_rejected(const struct access *access);

#endif
