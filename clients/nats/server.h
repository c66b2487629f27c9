/* Connections to NATS servers: what the command line says about them. */
#ifndef CORETAP_NATS_SERVER_H
#define CORETAP_NATS_SERVER_H

#include <stdbool.h>

#include <nats/nats.h>

struct server {
	const char *urls; /* separated by commas, NULL = $NATS_URL, else the local one */
	const char *creds, *tls_ca, *tls_cert, *tls_key, *tls_name;
	unsigned int turn; /* which of the urls to try first */
	char at[128];	   /* the one that was tried last, without credentials */
	char reason[256];  /* why server_connect failed */
	bool denied;	   /* because of the credentials, or of files that cannot be read */
};

/* Rows for getopt_long, and what --help says of them. */
enum { OPTION_SERVER = 0x100, OPTION_CREDS, OPTION_CA, OPTION_CERT, OPTION_KEY, OPTION_NAME };

#define SERVER_OPTIONS                                                \
	{ "server", required_argument, NULL, OPTION_SERVER },         \
		{ "creds", required_argument, NULL, OPTION_CREDS },   \
		{ "tls-ca", required_argument, NULL, OPTION_CA },     \
		{ "tls-cert", required_argument, NULL, OPTION_CERT }, \
		{ "tls-key", required_argument, NULL, OPTION_KEY },   \
	{                                                             \
		"tls-name", required_argument, NULL, OPTION_NAME      \
	}

#define SERVER_HELP                                                                        \
	"  --server URL[,URL...]\n"                                                        \
	"                 nats://[USER:PASSWORD@]HOST:PORT or tls://...; several of one\n" \
	"                 cluster are tried in turn ($NATS_URL, else the local one)\n"     \
	"  --creds FILE   credentials: a JWT and its seed, as nsc writes them\n"           \
	"  --tls-ca FILE  whom to trust, PEM\n"                                            \
	"  --tls-cert FILE, --tls-key FILE\n"                                              \
	"                 our own certificate and its key, PEM\n"                          \
	"  --tls-name NAME\n"                                                              \
	"                 what the server's certificate must say (the host of the URL)\n"

/* Takes an option of SERVER_OPTIONS; false when it is none of them. */
bool server_option(struct server *server, int option, const char *value);

/* A connection that does not reconnect: whoever loses it asks the stream anew. NULL with
 * server->reason. */
natsConnection *server_connect(struct server *server);

/* A request of libnats that failed, in words; code is JetStream's, 0 = none. The text lives until
 * this thread's next call of libnats. */
const char *server_error(natsStatus status, int code);

#endif
