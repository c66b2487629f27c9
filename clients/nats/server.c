/* See server.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server.h"

#define CONNECT_MS 2000
#define WRITE_MS 5000
#define PING_MS 2000 /* a server that was stopped is noticed after two of them */
#define MAX_URL 512

bool server_option(struct server *server, int option, const char *value)
{
	switch (option) {
	case OPTION_SERVER:
		server->urls = value;
		return true;
	case OPTION_CREDS:
		server->creds = value;
		return true;
	case OPTION_CA:
		server->tls_ca = value;
		return true;
	case OPTION_CERT:
		server->tls_cert = value;
		return true;
	case OPTION_KEY:
		server->tls_key = value;
		return true;
	case OPTION_NAME:
		server->tls_name = value;
		return true;
	}
	return false;
}

/* What libnats says, without the place in its source that it begins with. */
static const char *last_error(void)
{
	const char *text = nats_GetLastError(NULL);
	const char *end = text && *text == '(' ? strstr(text, "): ") : NULL;

	return end ? end + 3 : text;
}

const char *server_error(natsStatus status, int code)
{
	const char *text = last_error();

	if (code && text && *text)
		return text;
	if (status == NATS_TIMEOUT)
		return "no answer in time";
	if (status == NATS_NO_RESPONDERS)
		return "JetStream is not enabled there, or has no leader now";
	return natsStatus_GetText(status);
}

static bool fail(struct server *server, natsStatus status, const char *what, bool denied)
{
	const char *text = last_error();

	snprintf(server->reason, sizeof(server->reason), "%s: %s", what,
		 text && *text ? text : natsStatus_GetText(status));
	server->denied = denied;
	return false;
}

static bool set_tls(struct server *server, natsOptions *options, const char *url)
{
	char host[MAX_URL];
	const char *from = strstr(url, "://"), *at = strrchr(url, '@');
	natsStatus status;
	size_t length;

	if (strncmp(url, "tls://", 6) && !server->tls_ca && !server->tls_cert && !server->tls_name)
		return true;
	from = at ? at + 1 : from ? from + 3 : url;
	length = *from == '[' ? strcspn(++from, "]") : strcspn(from, ":/");
	snprintf(host, sizeof(host), "%.*s", (int)length, from);
	status = natsOptions_SetSecure(options, true);
	if (status == NATS_OK)
		status = natsOptions_SetExpectedHostname(
			options, server->tls_name ? server->tls_name : host);
	if (status != NATS_OK)
		return fail(server, status, "TLS", true);
	if (server->tls_ca) {
		status = natsOptions_LoadCATrustedCertificates(options, server->tls_ca);
		if (status != NATS_OK)
			return fail(server, status, server->tls_ca, true);
	}
	if (server->tls_cert) {
		status = natsOptions_LoadCertificatesChain(options, server->tls_cert,
							   server->tls_key ? server->tls_key
									   : server->tls_cert);
		if (status != NATS_OK)
			return fail(server, status, server->tls_cert, true);
	}
	return true;
}

static bool set_options(struct server *server, natsOptions *options, const char *url)
{
	natsStatus status = natsOptions_SetURL(options, url);

	if (status == NATS_OK)
		status = natsOptions_SetAllowReconnect(options, false);
	if (status == NATS_OK)
		status = natsOptions_SetTimeout(options, CONNECT_MS);
	if (status == NATS_OK)
		status = natsOptions_SetWriteDeadline(options, WRITE_MS);
	if (status == NATS_OK)
		status = natsOptions_SetPingInterval(options, PING_MS);
	/* What is published is on its way at once, never later out of a buffer: see window.h. */
	if (status == NATS_OK)
		status = natsOptions_SetSendAsap(options, true);
	if (status == NATS_OK)
		status = natsOptions_SetName(options, "coretap-nats");
	if (status != NATS_OK)
		return fail(server, status, server->at, true);
	if (server->creds) {
		status = natsOptions_SetUserCredentialsFromFiles(options, server->creds, NULL);
		if (status != NATS_OK)
			return fail(server, status, server->creds, true);
	}
	return set_tls(server, options, url);
}

static natsConnection *connect_to(struct server *server, const char *url)
{
	natsOptions *options = NULL;
	natsConnection *connection = NULL;
	natsStatus status = natsOptions_Create(&options);
	const char *at = strrchr(url, '@');

	snprintf(server->at, sizeof(server->at), "%.100s", at ? at + 1 : url);
	server->denied = false;
	if (status != NATS_OK) {
		fail(server, status, server->at, false);
		return NULL;
	}
	if (set_options(server, options, url)) {
		status = natsConnection_Connect(&connection, options);
		if (status != NATS_OK)
			fail(server, status, server->at,
			     status == NATS_CONNECTION_AUTH_FAILED || status == NATS_SSL_ERROR ||
				     status == NATS_SECURE_CONNECTION_WANTED ||
				     status == NATS_SECURE_CONNECTION_REQUIRED);
	}
	natsOptions_Destroy(options);
	return connection;
}

natsConnection *server_connect(struct server *server)
{
	const char *urls = server->urls, *url;
	natsConnection *connection = NULL;
	unsigned int n = 1;
	char one[MAX_URL];

	if (!urls)
		urls = getenv("NATS_URL");
	if (!urls || !*urls)
		urls = NATS_DEFAULT_URL;
	for (url = urls; (url = strchr(url, ',')); url++)
		n++;
	for (unsigned int i = 0; i < n && !connection; i++) {
		unsigned int skip = server->turn++ % n;

		for (url = urls; skip; skip--)
			url = strchr(url, ',') + 1;
		snprintf(one, sizeof(one), "%.*s", (int)strcspn(url, ","), url);
		connection = connect_to(server, one);
	}
	explicit_bzero(one, sizeof(one));
	return connection;
}
