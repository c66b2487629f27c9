/* Messages to the service manager (sd_notify's protocol), where one started us. */
#ifndef CORETAP_NOTIFY_H
#define CORETAP_NOTIFY_H

/* Sends "READY=1", "STATUS=..." or what else sd_notify(3) knows; lines are divided by \n. Nothing
 * happens without NOTIFY_SOCKET; a manager that does not listen is no failure of ours. */
void notify_send(const char *state);

/* "WATCHDOG=1" where the manager wants a sign of life from this process. */
void notify_alive(void);

#endif
