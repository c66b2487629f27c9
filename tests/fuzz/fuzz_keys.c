/* Any file as a secret key and as a list of clients' keys. */
#include "fuzz.h"

#include "../../bridge/access.h"
#include "../../bridge/log.h"

#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char key[] = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6\n";
	struct access *access = NULL;
	char path[32], good[32];
	int fd = input_file(data, size, path);
	int good_fd = input_file((const uint8_t *)key, sizeof(key) - 1, good);

	log_level((enum log_level)0);
	MUST(!fchmod(fd, 0600) && !fchmod(good_fd, 0600));
	if (!access_open(&access, path, good)) {
		MUST(size >= 40);
		access_close(access);
	}
	if (!access_open(&access, good, path))
		access_close(access);
	close(fd);
	close(good_fd);
	return 0;
}
