/* The sockets of `coretap play`: what coretapd's are to its subscribers. */
#ifndef CORETAP_PLAYER_H
#define CORETAP_PLAYER_H

#include "playlist.h"

struct player;

/* Binds on loopback at port, port + 1 and, for replay, port + 2. Returns 0, -EADDRINUSE or -errno.
 */
int player_open(struct player **player, struct playlist *list, unsigned int port);

/* Sends what waits, for at most a second, then closes. */
void player_close(struct player *player);

/* Publishes the next message of a socket. Ends the program when there is no memory. */
void player_publish(struct player *player, enum socket_id socket);

/* bridge.status or bridge.stopping on both sockets. */
void player_status(struct player *player, const char *topic);

/* Answers requests until a time, as steady_us has it. Returns early, with false, when stop_fd is
 * readable. */
bool player_serve(struct player *player, uint64_t until_us, int stop_fd);

#endif
