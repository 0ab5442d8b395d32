#include "inbox.hpp"

#include <algorithm>

namespace resilin::rpc {

void Inbox::add(const std::shared_ptr<Link> &link) {
    bool early;
    {
        const std::scoped_lock guard(requests_, replies_);
        links_.push_back(link);
        early = !link->reader(REQUESTS).empty() || !link->reader(REQUESTS + 1).empty();
    }
    if (early) disturb();
}

void Inbox::remove(const Link *link) {
    const std::scoped_lock guard(requests_, replies_);
    links_.erase(std::remove_if(links_.begin(), links_.end(), [&](const auto &each) { return each.get() == link; }), links_.end());
}

void Inbox::finish(Link &link) {
    const std::scoped_lock guard(requests_, replies_);
    link.reader(REQUESTS).finish();
    link.reader(REQUESTS + 1).finish();
}

void Inbox::sweep() {
    const std::scoped_lock guard(requests_, replies_);
    sweep_locked();
}

void Inbox::sweep_locked() {
    const auto gone = [](const std::shared_ptr<Link> &link) {
        return link->broken() || (link->ended() && link->reader(REQUESTS).empty() && link->reader(REQUESTS + 1).empty());
    };
    links_.erase(std::remove_if(links_.begin(), links_.end(), gone), links_.end());
}

void Inbox::sort() {
    for (bool more = true; more;) {
        const std::lock_guard<std::mutex> guard(replies_);
        more = sort_locked();
    }
}

bool Inbox::sort_locked() {
    bool more = false;
    for (const std::shared_ptr<Link> &link : links_) {
        Reader &reader = link->reader(REQUESTS + 1);
        if (reader.empty() || link->broken()) continue;
        Arrived message;
        Reader::Found found;
        while ((found = reader.next(message, false)) == Reader::Found::MESSAGE) {
            message.source = link->peer();
            const auto queue = message.queue == REQUESTS ? queues_.end() : queues_.find(message.queue);
            if (queue != queues_.end()) queue->second->arrived_.push_back(std::move(message));
        }
        if (found == Reader::Found::BROKEN)
            link->breaks(reader.why());
        else
            reader.done();
        more = more || found == Reader::Found::CHUNKS;
    }
    return more;
}

void Inbox::disturb() {
    const std::lock_guard<std::mutex> guard(replies_);
    for (const auto &[number, queue] : queues_) ring_for_all(bell(number));
}

} // namespace resilin::rpc
